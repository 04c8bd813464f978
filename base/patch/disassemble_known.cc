// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock. Functions return false for code that is not recognised.
// The built-in reader: it knows the instructions with which functions of common C libraries begin, and no others.
#include <cstring>

#include "base/patch/disassemble.h"

namespace pinrail::patch {
namespace {

// Reads an instruction byte by byte.
class Reader {
 public:
  Reader(const uint8_t* code, size_t room) : code_(code), room_(room) {}

  bool starts_with(const uint8_t* bytes, size_t count) {
    if (at_ + count > room_ || std::memcmp(code_ + at_, bytes, count) != 0) return false;
    at_ += count;
    return true;
  }
  bool ends() const { return at_ >= room_; }
  uint8_t next() { return code_[at_++]; }
  void back() { --at_; }
  uint8_t at() const { return static_cast<uint8_t>(at_); }
  bool number(size_t bytes, int64_t* value_out) {
    if (at_ + bytes > room_) return false;
    int32_t wide = static_cast<int8_t>(code_[at_]);  // NOLINT(bugprone-signed-char-misuse): it has a sign
    if (bytes == 4) std::memcpy(&wide, code_ + at_, sizeof(wide));
    at_ += bytes;
    *value_out = wide;
    return true;
  }

 private:
  const uint8_t* code_;
  size_t room_;
  size_t at_ = 0;
};

constexpr uint8_t kWide = 8, kReg = 4, kIndex = 2, kBase = 1;  // bits of the REX prefix

struct Parts {
  uint8_t rex = 0;
  uint8_t bytes() const { return (rex & kWide) != 0 ? 8 : 4; }
};

Operand register_operand(uint8_t number, uint8_t bytes) {
  Operand operand;
  operand.kind = Operand::reg;
  operand.number = number;
  operand.bytes = bytes;
  return operand;
}

// Reads the ModRM byte and what follows it: a register, or memory at rsp, rbp, another register or rip.
bool read_operands(Reader* reader, const Parts& parts, Operand* reg, Operand* rm, Instruction* out) {
  if (reader->ends() || (parts.rex & kIndex) != 0) return false;
  const uint8_t mod_rm = reader->next();
  const auto mode = static_cast<uint8_t>(mod_rm >> 6);
  const auto low = static_cast<uint8_t>(mod_rm & 7);
  *reg = register_operand(static_cast<uint8_t>((mod_rm >> 3 & 7) | ((parts.rex & kReg) != 0 ? 8 : 0)), parts.bytes());
  const auto base = static_cast<uint8_t>(low | ((parts.rex & kBase) != 0 ? 8 : 0));
  if (mode == 3) {
    *rm = register_operand(base, parts.bytes());
    return true;
  }
  rm->bytes = parts.bytes();
  if (mode == 0 && low == kRbp) {
    rm->kind = Operand::other;
    out->relative_at = reader->at();
    out->relative_bytes = 4;
    return reader->number(4, &out->relative);
  }
  constexpr uint8_t kPlainStack = 0x24;
  if (low == kRsp && (reader->ends() || reader->next() != kPlainStack || base != kRsp)) return false;
  rm->kind = Operand::frame;
  rm->number = base;
  return mode == 0 || reader->number(mode == 1 ? 1 : 4, &rm->value);
}

bool read_move(Reader* reader, const Parts& parts, uint8_t opcode, Instruction* out) {
  Operand reg, rm;
  if (!read_operands(reader, parts, &reg, &rm, out)) return false;
  constexpr uint8_t kStore = 0x89, kSignExtend = 0x63;
  if (opcode == kStore && rm.kind == Operand::other) return false;  // a store to memory whose place is not known
  if (opcode == kSignExtend && (parts.rex & kWide) == 0) return false;
  out->operation = Operation::move;
  out->to = opcode == kStore ? rm : reg;
  out->from = opcode == kStore ? reg : rm;
  if (opcode == kSignExtend) out->from.bytes = 4;
  return true;
}

// lea of a register plus a constant. A lea to rsp is refused.
bool read_address(Reader* reader, const Parts& parts, Instruction* out) {
  Operand reg, rm;
  if (!read_operands(reader, parts, &reg, &rm, out) || rm.kind == Operand::reg || reg.number == kRsp) return false;
  out->operation = Operation::compute;
  out->clobbers = static_cast<uint16_t>(1u << reg.number);
  return true;
}

// xor of a register with itself.
bool read_clear(Reader* reader, const Parts& parts, Instruction* out) {
  Operand reg, rm;
  if (!read_operands(reader, parts, &reg, &rm, out) || rm.kind != Operand::reg || rm.number != reg.number) return false;
  out->operation = Operation::move;
  out->to = reg;
  out->from.kind = Operand::immediate;
  return true;
}

// Arithmetic with a constant, of a register; of memory cmp alone. add and sub of rsp move the stack, cmp changes
// nothing, and other registers are clobbered.
bool read_arithmetic(Reader* reader, const Parts& parts, size_t bytes, Instruction* out) {
  Operand what, rm;
  int64_t amount;
  if (!read_operands(reader, parts, &what, &rm, out) || !reader->number(bytes, &amount)) return false;
  enum : uint8_t { kAdd = 0, kSub = 5, kCompare = 7 };
  const auto kind = static_cast<uint8_t>(what.number & 7);
  if (kind == kCompare) {
    out->operation = Operation::nothing;
  } else if (rm.kind != Operand::reg) {
    return false;
  } else if (rm.number != kRsp) {
    out->operation = Operation::compute;
    out->clobbers = static_cast<uint16_t>(1u << rm.number);
  } else if ((kind == kAdd || kind == kSub) && (parts.rex & kWide) != 0) {
    out->operation = Operation::move_stack;
    out->from.kind = Operand::immediate;
    out->from.value = kind == kAdd ? amount : -amount;
  } else {
    return false;
  }
  return true;
}

// test of two registers, test of a register with a constant, or cmpb of memory at rip with a constant.
bool read_test(Reader* reader, const Parts& parts, uint8_t opcode, Instruction* out) {
  Operand reg, rm;
  int64_t ignored;
  if (!read_operands(reader, parts, &reg, &rm, out)) return false;
  const auto kind = static_cast<uint8_t>(reg.number & 7);
  out->operation = Operation::nothing;
  constexpr uint8_t kTwo = 0x85, kConstant = 0xf7;
  if (opcode == kTwo) return rm.kind == Operand::reg;
  if (opcode == kConstant) return kind == 0 && rm.kind == Operand::reg && reader->number(4, &ignored);
  constexpr uint8_t kCompare = 7;
  if (kind != kCompare || !reader->number(1, &ignored)) return false;
  return true;
}

bool read_way(Reader* reader, Operation operation, size_t bytes, Instruction* out) {
  out->operation = operation;
  out->relative_at = reader->at();
  out->relative_bytes = static_cast<uint8_t>(bytes);
  return reader->number(bytes, &out->relative);
}

bool read_constant(Reader* reader, uint8_t number, Instruction* out) {
  out->operation = Operation::move;
  out->to = register_operand(number, 4);
  out->from.kind = Operand::immediate;
  return reader->number(4, &out->from.value);
}

bool read_two_bytes(Reader* reader, Instruction* out) {
  if (reader->ends()) return false;
  const uint8_t opcode = reader->next();
  if (opcode == 0x05) {
    out->operation = Operation::system_call;
    return true;
  }
  return (opcode & 0xf0) == 0x80 && read_way(reader, Operation::branch, 4, out);
}

// jmp *%register: the end of another runtime's patch.
bool read_jump_by(Reader* reader, Instruction* out) {
  constexpr uint8_t kJumpByRegister = 0xe0;
  out->operation = Operation::jump_by;
  return !reader->ends() && (reader->next() & 0xf8) == kJumpByRegister;
}

bool read_opcode(Reader* reader, const Parts& parts, Instruction* out) {
  if (reader->ends()) return false;
  const uint8_t opcode = reader->next();
  const auto number = static_cast<uint8_t>((opcode & 7) | ((parts.rex & kBase) != 0 ? 8 : 0));
  const bool is_narrow = (parts.rex & kWide) == 0;
  switch (opcode & 0xf8) {
    case 0x50:
      out->operation = Operation::push;
      out->from = register_operand(number, 8);
      return true;
    case 0x58:
      out->operation = Operation::pop;
      out->to = register_operand(number, 8);
      return true;
    case 0x70:
    case 0x78: return parts.rex == 0 && read_way(reader, Operation::branch, 1, out);
    case 0xb8: return is_narrow && read_constant(reader, number, out);
    default: break;
  }
  switch (opcode) {
    case 0x0f: return read_two_bytes(reader, out);
    case 0x31: return read_clear(reader, parts, out);
    case 0x63:
    case 0x89:
    case 0x8b: return read_move(reader, parts, opcode, out);
    case 0x8d: return read_address(reader, parts, out);
    case 0x68:
      out->operation = Operation::push;
      out->from.kind = Operand::immediate;
      return reader->number(4, &out->from.value);
    case 0x80: return parts.rex == 0 && read_test(reader, parts, opcode, out);
    case 0x81: return read_arithmetic(reader, parts, 4, out);
    case 0x83: return read_arithmetic(reader, parts, 1, out);
    case 0x85:
    case 0xf7: return read_test(reader, parts, opcode, out);
    case 0x90: out->operation = Operation::nothing; return parts.rex == 0;
    case 0xc3: out->operation = Operation::leave; return true;
    case 0xe8: return read_way(reader, Operation::call, 4, out);
    case 0xe9: return read_way(reader, Operation::jump, 4, out);
    case 0xeb: return read_way(reader, Operation::jump, 1, out);
    case 0xff: return read_jump_by(reader, out);
    default: return false;
  }
}

constexpr uint8_t kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
constexpr uint8_t kNop[] = {0x66, 0x90};
constexpr uint8_t kThreadPrefix[] = {0x64};

// mov %fs:constant, %register: a load from the thread's control block.
bool read_thread_word(Reader* reader, const Parts& parts, Instruction* out) {
  constexpr uint8_t kLoad = 0x8b, kAbsolute = 0x25;
  if (reader->ends() || reader->next() != kLoad || reader->ends()) return false;
  const uint8_t mod_rm = reader->next();
  int64_t ignored;
  if ((mod_rm & 0xc7) != 4 || (parts.rex & (kIndex | kBase)) != 0) return false;
  if (reader->ends() || reader->next() != kAbsolute || !reader->number(4, &ignored)) return false;
  out->operation = Operation::move;
  out->to =
      register_operand(static_cast<uint8_t>((mod_rm >> 3 & 7) | ((parts.rex & kReg) != 0 ? 8 : 0)), parts.bytes());
  out->from.kind = Operand::other;
  return true;
}

// Reads prefixes and then the instruction.
bool read_any(Reader* reader, Instruction* out) {
  if (reader->starts_with(kEndbr64, sizeof(kEndbr64)) || reader->starts_with(kNop, sizeof(kNop))) {
    out->operation = Operation::nothing;
    return true;
  }
  const bool is_thread = reader->starts_with(kThreadPrefix, sizeof(kThreadPrefix));
  Parts parts;
  if (reader->ends()) return false;
  const uint8_t first = reader->next();
  if ((first & 0xf0) == 0x40) {
    parts.rex = first;
  } else {
    reader->back();
  }
  return is_thread ? read_thread_word(reader, parts, out) : read_opcode(reader, parts, out);
}

}  // namespace

bool read_known(const uint8_t* code, size_t room, Instruction* instruction_out) {
  Reader reader(code, room);
  Instruction instruction;
  if (!read_any(&reader, &instruction) || reader.at() > room) return false;
  instruction.length = reader.at();
  *instruction_out = instruction;
  return true;
}

}  // namespace pinrail::patch
