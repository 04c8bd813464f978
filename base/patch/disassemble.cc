// SPDX-License-Identifier: BSD-3-Clause
// The reader that uses Zydis. Start-up or API context, no lock of Pinrail's.
#include "base/patch/disassemble.h"

#include "config.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(HAVE_ZYDIS)

#include <Zydis/Zydis.h>
#include <dlfcn.h>

#include <cstdio>
#include <new>

namespace pinrail::patch {
namespace {

// Loaded only while functions are patched: loading takes 60 us, and the 0.6 MB are not needed afterwards.
struct Zydis {
  void* library = nullptr;
  decltype(&ZydisDecoderDecodeFull) decode = nullptr;
  ZydisDecoder decoder{};

  Zydis() = default;
  Zydis(const Zydis&) = delete;
  Zydis& operator=(const Zydis&) = delete;
  ~Zydis() {
    if (library != nullptr) dlclose(library);
  }

  // Loads the version whose header was compiled in: other versions have other structure layouts.
  bool load() {
    char name[32];
    std::snprintf(name, sizeof(name), "libZydis.so.%u.%u", unsigned{ZYDIS_VERSION_MAJOR(ZYDIS_VERSION)},
                  unsigned{ZYDIS_VERSION_MINOR(ZYDIS_VERSION)});
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto init = reinterpret_cast<decltype(&ZydisDecoderInit)>(dlsym(library, "ZydisDecoderInit"));
    decode = reinterpret_cast<decltype(&ZydisDecoderDecodeFull)>(dlsym(library, "ZydisDecoderDecodeFull"));
    return init != nullptr && decode != nullptr &&
           ZYAN_SUCCESS(init(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64));
  }
};

struct Decoded {
  ZydisDecodedInstruction instruction;
  ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
};

bool is_general(ZydisRegister name) { return name >= ZYDIS_REGISTER_AL && name <= ZYDIS_REGISTER_R15; }

// Returns the number of the whole register that contains this part. Zydis lists the registers of each width in the
// order of their numbers, except the four upper bytes ah, ch, dh and bh, which it lists after the four lower ones.
uint8_t number_of(ZydisRegister name) {
  if (name >= ZYDIS_REGISTER_RAX) return static_cast<uint8_t>(name - ZYDIS_REGISTER_RAX);
  if (name >= ZYDIS_REGISTER_EAX) return static_cast<uint8_t>(name - ZYDIS_REGISTER_EAX);
  if (name >= ZYDIS_REGISTER_AX) return static_cast<uint8_t>(name - ZYDIS_REGISTER_AX);
  if (name >= ZYDIS_REGISTER_SPL) return static_cast<uint8_t>(name - ZYDIS_REGISTER_SPL + kRsp);
  return static_cast<uint8_t>((name - ZYDIS_REGISTER_AL) % 4);
}

bool writes(const ZydisDecodedOperand& operand) { return (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0; }

// Returns whether the operand is memory at a register plus a constant, in the common segment.
bool is_frame(const ZydisDecodedOperandMem& memory) {
  return memory.base >= ZYDIS_REGISTER_RAX && memory.base <= ZYDIS_REGISTER_R15 &&
         memory.index == ZYDIS_REGISTER_NONE &&
         (memory.segment == ZYDIS_REGISTER_DS || memory.segment == ZYDIS_REGISTER_SS);
}

Operand operand_of(const ZydisDecodedOperand& from) {
  Operand operand;
  operand.kind = Operand::other;
  operand.bytes = static_cast<uint8_t>(from.size / 8);
  if (from.type == ZYDIS_OPERAND_TYPE_REGISTER && from.reg.value >= ZYDIS_REGISTER_EAX && is_general(from.reg.value)) {
    operand.kind = Operand::reg;
    operand.number = number_of(from.reg.value);
  } else if (from.type == ZYDIS_OPERAND_TYPE_MEMORY && is_frame(from.mem)) {
    operand.kind = Operand::frame;
    operand.number = number_of(from.mem.base);
    operand.value = from.mem.disp.value;
  } else if (from.type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
    operand.kind = Operand::immediate;
    operand.value = from.imm.value.s;
  }
  return operand;
}

bool is_register(const ZydisDecodedOperand& operand, ZydisRegister name) {
  return operand.type == ZYDIS_OPERAND_TYPE_REGISTER && operand.reg.value == name;
}

// Lists what the instruction writes. False if it writes more than general registers, flags and one place in memory.
bool list_writes(const Decoded& decoded, Instruction* out) {
  for (size_t i = 0; i < decoded.instruction.operand_count; ++i) {
    const ZydisDecodedOperand& operand = decoded.operands[i];
    if (!writes(operand)) continue;
    const bool is_register_operand = operand.type == ZYDIS_OPERAND_TYPE_REGISTER;
    if (is_register_operand && is_general(operand.reg.value)) {
      out->clobbers = static_cast<uint16_t>(out->clobbers | 1u << number_of(operand.reg.value));
    } else if (operand.type == ZYDIS_OPERAND_TYPE_MEMORY && out->to.kind == Operand::none && is_frame(operand.mem)) {
      out->to = operand_of(operand);
    } else if (!is_register_operand || operand.reg.value != ZYDIS_REGISTER_RFLAGS) {
      return false;
    }
  }
  return true;
}

bool is_plain(ZydisInstructionCategory category) {
  switch (category) {
    case ZYDIS_CATEGORY_BINARY:
    case ZYDIS_CATEGORY_BITBYTE:
    case ZYDIS_CATEGORY_CMOV:
    case ZYDIS_CATEGORY_CONVERT:
    case ZYDIS_CATEGORY_DATAXFER:
    case ZYDIS_CATEGORY_LOGICAL:
    case ZYDIS_CATEGORY_NOP:
    case ZYDIS_CATEGORY_ROTATE:
    case ZYDIS_CATEGORY_SETCC:
    case ZYDIS_CATEGORY_SHIFT:
    case ZYDIS_CATEGORY_WIDENOP: return true;
    default: return false;
  }
}

bool is_named_plain(ZydisMnemonic mnemonic) {
  switch (mnemonic) {
    case ZYDIS_MNEMONIC_LEA:
    case ZYDIS_MNEMONIC_ENDBR64:
    case ZYDIS_MNEMONIC_NOP: return true;
    default: return false;
  }
}

// Describes add, sub or lea to rsp by a constant. False for other instructions.
bool moves_stack(const Decoded& decoded, Instruction* out) {
  const ZydisDecodedOperand* const operands = decoded.operands;
  if (!is_register(operands[0], ZYDIS_REGISTER_RSP)) return false;
  const ZydisMnemonic mnemonic = decoded.instruction.mnemonic;
  const bool is_sum = (mnemonic == ZYDIS_MNEMONIC_ADD || mnemonic == ZYDIS_MNEMONIC_SUB) &&
                      operands[1].type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
  const bool is_address = mnemonic == ZYDIS_MNEMONIC_LEA && operands[1].mem.base == ZYDIS_REGISTER_RSP &&
                          operands[1].mem.index == ZYDIS_REGISTER_NONE;
  if (!is_sum && !is_address) return false;
  out->operation = Operation::move_stack;
  out->from.kind = Operand::immediate;
  const int64_t amount = is_sum ? operands[1].imm.value.s : operands[1].mem.disp.value;
  out->from.value = mnemonic == ZYDIS_MNEMONIC_SUB ? -amount : amount;
  return true;
}

bool clears_register(const Decoded& decoded) {
  const ZydisMnemonic mnemonic = decoded.instruction.mnemonic;
  const ZydisDecodedOperand* const operands = decoded.operands;
  return (mnemonic == ZYDIS_MNEMONIC_XOR || mnemonic == ZYDIS_MNEMONIC_SUB) &&
         operands[0].type == ZYDIS_OPERAND_TYPE_REGISTER && is_register(operands[1], operands[0].reg.value) &&
         operands[0].size >= 32;
}

// Describes an instruction without control flow. It stays Operation::unknown if it is not recognised.
void describe_plain(const Decoded& decoded, Instruction* out) {
  const ZydisMnemonic mnemonic = decoded.instruction.mnemonic;
  if (moves_stack(decoded, out)) return;
  const Operand first = operand_of(decoded.operands[0]);
  if (clears_register(decoded) && first.kind == Operand::reg) {
    out->operation = Operation::move;
    out->to = first;
    out->from.kind = Operand::immediate;
    return;
  }
  if (mnemonic == ZYDIS_MNEMONIC_MOV || mnemonic == ZYDIS_MNEMONIC_MOVSXD) {
    const Operand second = operand_of(decoded.operands[1]);
    if (first.kind != Operand::other && first.bytes >= 4) {
      out->operation = Operation::move;
      out->to = first;
      out->from = second;
      return;
    }
  }
  if (!is_plain(decoded.instruction.meta.category) && !is_named_plain(mnemonic)) return;
  if (!list_writes(decoded, out)) return;
  out->operation = out->clobbers == 0 && out->to.kind == Operand::none ? Operation::nothing : Operation::compute;
}

// Describes any instruction. It stays Operation::unknown if it is not recognised.
void describe(const Decoded& decoded, Instruction* out) {
  const ZydisDecodedOperand* const operands = decoded.operands;
  const bool is_fixed = operands[0].type == ZYDIS_OPERAND_TYPE_IMMEDIATE && operands[0].imm.is_relative != 0;
  switch (decoded.instruction.mnemonic) {
    case ZYDIS_MNEMONIC_PUSH:
      if (decoded.instruction.operand_width != 64) return;
      out->operation = Operation::push;
      out->from = operand_of(operands[0]);
      return;
    case ZYDIS_MNEMONIC_POP:
      if (operands[0].type != ZYDIS_OPERAND_TYPE_REGISTER || decoded.instruction.operand_width != 64) return;
      out->operation = Operation::pop;
      out->to = operand_of(operands[0]);
      return;
    case ZYDIS_MNEMONIC_SYSCALL: out->operation = Operation::system_call; return;
    case ZYDIS_MNEMONIC_RET: out->operation = Operation::leave; return;
    case ZYDIS_MNEMONIC_CALL: out->operation = is_fixed ? Operation::call : Operation::unknown; return;
    case ZYDIS_MNEMONIC_JMP: out->operation = is_fixed ? Operation::jump : Operation::jump_by; return;
    default: break;
  }
  if (decoded.instruction.meta.category == ZYDIS_CATEGORY_COND_BR && is_fixed) {
    out->operation = Operation::branch;
  } else {
    describe_plain(decoded, out);
  }
}

// Finds a displacement that is relative to the instruction's end: of a memory operand or of a branch target.
void find_relative(const Decoded& decoded, Instruction* out) {
  for (size_t i = 0; i < decoded.instruction.operand_count; ++i) {
    const ZydisDecodedOperand& operand = decoded.operands[i];
    if (operand.type == ZYDIS_OPERAND_TYPE_MEMORY && operand.mem.base == ZYDIS_REGISTER_RIP) {
      out->relative_at = decoded.instruction.raw.disp.offset;
      out->relative_bytes = static_cast<uint8_t>(decoded.instruction.raw.disp.size / 8);
      out->relative = decoded.instruction.raw.disp.value;
    } else if (operand.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && operand.imm.is_relative != 0) {
      out->relative_at = decoded.instruction.raw.imm[0].offset;
      out->relative_bytes = static_cast<uint8_t>(decoded.instruction.raw.imm[0].size / 8);
      out->relative = decoded.instruction.raw.imm[0].value.s;
    }
  }
}

// Decodes the instruction at code, of which room bytes are readable. False, *out unchanged: it is none. What Zydis
// decodes and this file has no description for has Operation::unknown.
bool decode_by_zydis(const Zydis& zydis, const uint8_t* code, size_t room, Instruction* out) {
  Decoded decoded;
  if (!ZYAN_SUCCESS(zydis.decode(&zydis.decoder, code, room, &decoded.instruction, decoded.operands))) return false;
  Instruction instruction;
  instruction.length = decoded.instruction.length;
  find_relative(decoded, &instruction);
  describe(decoded, &instruction);
  *out = instruction;
  return true;
}

}  // namespace

Disassembler Disassembler::open() {
  Disassembler opened;
  auto* const zydis = new (std::nothrow) Zydis;
  opened.zydis_ = {zydis, [](const void* used) { delete static_cast<const Zydis*>(used); }};
  if (zydis != nullptr && !zydis->load()) opened.zydis_.reset();
  return opened;
}

bool Disassembler::read(const uint8_t* code, size_t room, Instruction* out) const {
  if (zydis_ == nullptr) return read_known(code, room, out);
  return decode_by_zydis(*static_cast<const Zydis*>(zydis_.get()), code, room, out);
}

}  // namespace pinrail::patch

#else

namespace pinrail::patch {

Disassembler Disassembler::open() { return Disassembler(); }

bool Disassembler::read(const uint8_t* code, size_t room, Instruction* out) const {
  return read_known(code, room, out);
}

}  // namespace pinrail::patch

#endif
