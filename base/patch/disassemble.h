// SPDX-License-Identifier: BSD-3-Clause
// disassemble.h - reads x86-64 instructions.
//
// Owns     the library Zydis, loaded from open() to the end of the object's life, where it is there.
// Threads  open() and the end: start-up (the dynamic loader's lock). read(): any.
//
// Without Zydis, or without open(), a small reader of our own knows the instructions that C libraries of common
// distributions begin with. What a reader does not know, or not for sure, it refuses.
#ifndef PINRAIL_BASE_PATCH_DISASSEMBLE_H
#define PINRAIL_BASE_PATCH_DISASSEMBLE_H

#include <memory>

#include "base/patch/instruction.h"

namespace pinrail::patch {

class Disassembler {
 public:
  // The small reader. It may be used where the dynamic loader's lock may not be taken.
  Disassembler() = default;
  // Zydis if it can be loaded, else the small reader.
  static Disassembler open();

  bool is_complete() const { return zydis_ != nullptr; }  // Zydis reads
  // False if the bytes are no instruction that the reader knows, or end within it.
  bool read(const uint8_t* code, size_t room, Instruction* instruction_out) const;

 private:
  std::unique_ptr<const void, void (*)(const void*)> zydis_{nullptr, [](const void*) {}};
};

// The small reader.
bool read_known(const uint8_t* code, size_t room, Instruction* instruction_out);

}  // namespace pinrail::patch

#endif
