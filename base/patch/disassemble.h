// SPDX-License-Identifier: BSD-3-Clause
// disassemble.h - reads x86-64 instructions.
//
// Owns     the library Zydis, if it is installed, from open() until the object is destroyed.
// Threads  open() and the destructor take the dynamic loader's lock and run at start-up. read() may be called by any
//          thread.
//
// Without Zydis, or without open(), the built-in reader is used. It knows the instructions with which functions of the
// C libraries of common distributions begin. A reader refuses each instruction that it does not know for certain.
#ifndef PINRAIL_BASE_PATCH_DISASSEMBLE_H
#define PINRAIL_BASE_PATCH_DISASSEMBLE_H

#include <memory>

#include "base/patch/instruction.h"

namespace pinrail::patch {

class Disassembler {
 public:
  // Makes an object with the built-in reader. It may be used where the dynamic loader's lock must not be taken.
  Disassembler() = default;
  // Uses Zydis if it can be loaded, otherwise the built-in reader.
  static Disassembler open();

  bool is_complete() const { return zydis_ != nullptr; }  // true if Zydis is used
  // Decodes one instruction. False if the reader does not know it or `room` ends inside it.
  bool read(const uint8_t* code, size_t room, Instruction* instruction_out) const;

 private:
  std::unique_ptr<const void, void (*)(const void*)> zydis_{nullptr, [](const void*) {}};
};

// The built-in reader; see Disassembler::read().
bool read_known(const uint8_t* code, size_t room, Instruction* instruction_out);

}  // namespace pinrail::patch

#endif
