// SPDX-License-Identifier: BSD-3-Clause
// frame.h - tracks where the caller's values are while the first instructions of a function run.
//
// Threads  An object is used by one thread.
// Context  start-up or API.
//
// frame/F1  A register or stack slot is recorded as holding a value only if that is true for all possible values.
// frame/F2  run() returns false at an instruction that decode/D2 does not permit; the object must not be used after
//     that.
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
  // Writes code that restores the arguments, the callee-saved registers and the stack pointer to their values at the
  // function's start. False if a value is lost or there is no room.
  bool write_undo(const Signature& signature, uint8_t* code, size_t room, size_t* length_out) const;

 private:
  struct Value {
    enum Kind : uint8_t {
      unknown,
      initial,   // the value of register `number` when the function was entered
      low_half,  // its lower 32 bits; the upper ones are zero or the sign
      stack,     // the stack address at `amount` bytes from the initial stack pointer
      constant
    };
    Kind kind = unknown;
    uint8_t number = 0;
    int64_t amount = 0;
  };
  struct Slot {
    int64_t offset = 0;  // from the initial stack pointer
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
  // Whether the value is the one that the register had at the function's start; of an int the low half is enough.
  bool is_initial_value(const Value& value, uint8_t number, bool is_int) const;
  // Returns where an initial value is now: a register, or memory at rsp.
  bool find(uint8_t number, bool is_int, Operand* place_out) const;

  Value registers_[kRegisters];
  Slot slots_[kSlots];
  size_t slot_count_ = 0;
  int64_t depth_ = 0;  // the stack pointer minus the initial one: 0 or less
  bool has_called_ = false;
  bool is_shown_ = false;  // an address in the stack may have been passed to other code
};

}  // namespace pinrail::patch

#endif
