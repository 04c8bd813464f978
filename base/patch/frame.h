// SPDX-License-Identifier: BSD-3-Clause
// frame.h - where the caller's values stand while the first instructions of a function run.
//
// Threads  one.
//
// frame/F1  A register or a slot of the stack is said to hold a value only if it does so whatever the values are.
// frame/F2  run() is false where an instruction does anything else than decode/D2 allows; what is held then is of no
//     use any more.
#ifndef PINRAIL_BASE_PATCH_FRAME_H
#define PINRAIL_BASE_PATCH_FRAME_H

#include "base/patch/instruction.h"

namespace pinrail::patch {

struct Signature;

class Frame {
 public:
  Frame();

  bool run(const Instruction& instruction);
  bool has_called() const { return has_called_; }
  bool holds_constant(uint8_t reg, int64_t value) const;
  // Code that puts arguments, callee-saved registers and the stack pointer where they were at the function's start.
  // False if something is lost, or there is no room.
  bool write_undo(const Signature& signature, uint8_t* code, size_t room, size_t* length_out) const;

 private:
  struct Value {
    enum Kind : uint8_t {
      unknown,
      initial,   // of the register `number`, as the caller left it
      low_half,  // its lower 32 bits; the upper ones are zero or the sign
      stack,     // the address at that distance from the first stack pointer
      constant
    };
    Kind kind = unknown;
    uint8_t number = 0;
    int64_t amount = 0;
  };
  struct Slot {
    int64_t offset = 0;  // from the first stack pointer
    Value value;
  };
  static constexpr size_t kSlots = 24;

  Value read(const Operand& operand) const;
  bool find_offset(const Operand& frame, int64_t* offset_out) const;
  bool write(const Operand& operand, const Value& value);
  bool store(int64_t offset, size_t bytes, const Value& value);
  bool move_stack(int64_t by);
  bool push(const Operand& operand);
  bool pop(const Operand& operand);
  bool move(const Instruction& instruction);
  bool compute(const Instruction& instruction);
  bool call();
  bool holds(const Value& value, uint8_t number, bool is_int) const;
  // Where a value stands now: a register, or memory at rsp.
  bool find(uint8_t number, bool is_int, Operand* place_out) const;

  Value registers_[kRegisters];
  Slot slots_[kSlots];
  size_t slot_count_ = 0;
  int64_t depth_ = 0;  // of the stack pointer, from the first: 0 or less
  bool has_called_ = false;
  bool is_shown_ = false;  // an address in the stack may be known to others
};

}  // namespace pinrail::patch

#endif
