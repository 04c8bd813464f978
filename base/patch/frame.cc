// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock.
#include "base/patch/frame.h"

#include <cstring>

#include "base/patch/decode.h"

namespace pinrail::patch {
namespace {

constexpr uint8_t kArguments[] = {kRdi, kRsi, kRdx, kRcx, kR8, kR9};
constexpr uint8_t kKept[] = {kRbx, kRbp, kR12, kR13, kR14, kR15};  // registers that a function preserves for its caller
constexpr uint8_t kLost[] = {kRax, kRcx, kRdx, kRsi, kRdi, kR8, kR9, kR10, kR11};  // registers that a call may change
constexpr size_t kWord = 8;
constexpr int64_t kDeepest = 4096;  // the largest frame that is followed, in bytes

// Writes code, and records whether there was not enough room.
class Emitter {
 public:
  Emitter(uint8_t* code, size_t room) : code_(code), room_(room) {}

  void bytes(const void* from, size_t count) {
    if (length_ + count > room_) fits_ = false;
    if (!fits_) return;
    std::memcpy(code_ + length_, from, count);
    length_ += count;
  }
  void byte(unsigned value) {
    const auto narrow = static_cast<uint8_t>(value);
    bytes(&narrow, 1);
  }
  void number(int64_t value) {
    const auto narrow = static_cast<int32_t>(value);
    bytes(&narrow, sizeof(narrow));
  }
  void push_register(uint8_t number) { one_byte(0x50, number); }
  void pop_register(uint8_t number) { one_byte(0x58, number); }
  void push_stack(int64_t offset) {  // push offset(%rsp)
    const uint8_t opcode[] = {0xff, 0xb4, 0x24};
    bytes(opcode, sizeof(opcode));
    number(offset);
  }
  void move_stack(int64_t by) {  // lea by(%rsp), %rsp, which keeps the flags
    const uint8_t opcode[] = {0x48, 0x8d, 0xa4, 0x24};
    bytes(opcode, sizeof(opcode));
    number(by);
  }
  bool fits() const { return fits_; }
  size_t length() const { return length_; }

 private:
  void one_byte(unsigned opcode, uint8_t number) {
    if (number >= 8) byte(0x41);
    byte(opcode + (number & 7u));
  }

  uint8_t* code_;
  size_t room_, length_ = 0;
  bool fits_ = true;
};

}  // namespace

Frame::Frame() {
  for (uint8_t i = 0; i < kRegisters; ++i) registers_[i] = {Value::initial, i, 0};
  registers_[kRsp] = {Value::stack, 0, 0};
}

bool Frame::holds_constant(uint8_t reg, int64_t value) const {
  return registers_[reg].kind == Value::constant && registers_[reg].amount == value;
}

// Returns in *offset_out where in the stack an operand lies. False if that is not known.
bool Frame::find_offset(const Operand& frame, int64_t* offset_out) const {
  const Value& base = registers_[frame.number];
  if (base.kind != Value::stack) return false;
  *offset_out = base.amount + frame.value;
  return true;
}

// Returns what an operand holds; Value::unknown if that is not known.
Frame::Value Frame::read(const Operand& operand) const {
  Value value;
  if (operand.kind == Operand::immediate) return {Value::constant, 0, operand.value};
  if (operand.kind == Operand::reg) value = registers_[operand.number];
  int64_t offset;
  if (operand.kind == Operand::frame && find_offset(operand, &offset)) {
    for (size_t i = 0; i < slot_count_; ++i) {
      if (slots_[i].offset == offset) value = slots_[i].value;
    }
  }
  if (operand.bytes == kWord) return value;
  // The operand is four bytes wide. A slot is known as a whole or not at all.
  if (value.kind == Value::constant) return value;
  const bool known = operand.bytes == 4 && (value.kind == Value::initial || value.kind == Value::low_half);
  return known ? Value{Value::low_half, value.number, 0} : Value{};
}

// Keeps decode/D2: stores only into the function's own part of the stack. Overlapped slots become unknown.
bool Frame::store(int64_t offset, size_t bytes, const Value& value) {
  constexpr int64_t kRedZone = 128;  // bytes below the stack pointer that a leaf function may use
  const auto length = static_cast<int64_t>(bytes);
  if (offset + length > 0 || offset < depth_ - kRedZone) return false;
  for (size_t i = 0; i < slot_count_;) {
    const bool apart = slots_[i].offset + int64_t{kWord} <= offset || offset + length <= slots_[i].offset;
    if (apart) {
      ++i;
    } else {
      slots_[i] = slots_[--slot_count_];
    }
  }
  if (bytes != kWord || value.kind == Value::unknown) return true;
  if (slot_count_ == kSlots) return false;
  slots_[slot_count_++] = {offset, value};
  return true;
}

bool Frame::write(const Operand& operand, const Value& value) {
  if (operand.kind == Operand::reg) {
    if (operand.number == kRsp) return false;
    registers_[operand.number] = value;
    return true;
  }
  int64_t offset;
  return operand.kind == Operand::frame && find_offset(operand, &offset) && store(offset, operand.bytes, value);
}

bool Frame::move_stack(int64_t by) {
  depth_ += by;
  registers_[kRsp].amount = depth_;
  return depth_ <= 0 && depth_ >= -kDeepest;
}

bool Frame::push(const Operand& operand) {
  const Value value = read(operand);
  is_shown_ = is_shown_ || value.kind == Value::stack;
  return move_stack(-int64_t{kWord}) && store(depth_, kWord, value);
}

bool Frame::pop(const Operand& operand) {
  Operand top;
  top.kind = Operand::frame;
  top.number = kRsp;
  const Value value = read(top);
  return write(operand, value) && move_stack(kWord);
}

// Runs a move: tracks the value, and whether a stack address is copied to a place other than rbp.
bool Frame::move(const Instruction& instruction) {
  const Value value = read(instruction.from);
  const bool is_to_rbp = instruction.to.kind == Operand::reg && instruction.to.number == kRbp;
  is_shown_ = is_shown_ || (value.kind == Value::stack && !is_to_rbp);
  return write(instruction.to, value);
}

// The result may be a stack address if an operand was one.
bool Frame::compute(const Instruction& instruction) {
  is_shown_ = true;
  for (uint8_t i = 0; i < kRegisters; ++i) {
    if ((instruction.clobbers >> i & 1) == 0) continue;
    if (i == kRsp) return false;
    registers_[i] = Value();
  }
  return instruction.to.kind == Operand::none || write(instruction.to, Value());
}

// The called function preserves callee-saved registers, and the memory above the stack pointer if no address of it was
// passed on.
bool Frame::call() {
  if (is_shown_) return false;
  for (const uint8_t lost : kLost) registers_[lost] = Value();
  for (size_t i = 0; i < slot_count_;) {
    if (slots_[i].offset >= depth_) {
      ++i;
    } else {
      slots_[i] = slots_[--slot_count_];
    }
  }
  has_called_ = true;
  return true;
}

bool Frame::run(const Instruction& instruction) {
  switch (instruction.operation) {
    case Operation::nothing: return true;
    case Operation::move: return move(instruction);
    case Operation::compute: return compute(instruction);
    case Operation::move_stack: return move_stack(instruction.from.value);
    case Operation::push: return push(instruction.from);
    case Operation::pop: return pop(instruction.to);
    case Operation::call: return call();
    case Operation::branch:
    case Operation::jump:
    case Operation::jump_by:
    case Operation::leave:
    case Operation::system_call:
    case Operation::unknown: break;
  }
  return false;
}

bool Frame::is_initial_value(const Value& value, uint8_t number, bool is_int) const {
  if (value.number != number) return false;
  return value.kind == Value::initial || (is_int && value.kind == Value::low_half);
}

// Finds where the register's initial value is now; prefers its own register.
bool Frame::find(uint8_t number, bool is_int, Operand* place_out) const {
  place_out->kind = Operand::reg;
  place_out->number = number;
  if (is_initial_value(registers_[number], number, is_int)) return true;
  for (uint8_t i = 0; i < kRegisters; ++i) {
    place_out->number = i;
    if (i != kRsp && is_initial_value(registers_[i], number, is_int)) return true;
  }
  place_out->kind = Operand::frame;
  place_out->number = kRsp;
  for (size_t i = 0; i < slot_count_; ++i) {
    place_out->value = slots_[i].offset - depth_;
    if (place_out->value >= 0 && is_initial_value(slots_[i].value, number, is_int)) return true;
  }
  return false;
}

// Pushes each value that must move, then pops each to its own register. So the order does not matter.
bool Frame::write_undo(const Signature& signature, uint8_t* code, size_t room, size_t* length_out) const {
  Emitter emitter(code, room);
  uint8_t moved[sizeof(kArguments) + sizeof(kKept)];
  size_t count = 0;
  const auto add = [&](uint8_t number, bool is_int) {
    Operand place;
    if (!find(number, is_int, &place)) return false;
    if (place.kind == Operand::reg && place.number == number) return true;
    if (place.kind == Operand::reg) emitter.push_register(place.number);
    if (place.kind == Operand::frame) emitter.push_stack(place.value + static_cast<int64_t>(count * kWord));
    moved[count++] = number;
    return true;
  };
  for (size_t i = 0; i < signature.arguments; ++i) {
    if (!add(kArguments[i], (signature.ints >> i & 1) != 0)) return false;
  }
  for (const uint8_t kept : kKept) {
    if (!add(kept, false)) return false;
  }
  while (count != 0) emitter.pop_register(moved[--count]);
  if (depth_ != 0) emitter.move_stack(-depth_);
  *length_out = emitter.length();
  return emitter.fits();
}

}  // namespace pinrail::patch
