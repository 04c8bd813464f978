// SPDX-License-Identifier: BSD-3-Clause
// instruction.h - one x86-64 instruction: what of it the rules of decode.h need to know.
#ifndef PINRAIL_BASE_PATCH_INSTRUCTION_H
#define PINRAIL_BASE_PATCH_INSTRUCTION_H

#include <cstddef>
#include <cstdint>

namespace pinrail::patch {

// General registers, by their number in instructions.
enum Register : uint8_t {
  kRax,
  kRcx,
  kRdx,
  kRbx,
  kRsp,
  kRbp,
  kRsi,
  kRdi,
  kR8,
  kR9,
  kR10,
  kR11,
  kR12,
  kR13,
  kR14,
  kR15
};
constexpr size_t kRegisters = 16;

struct Operand {
  enum Kind : uint8_t {
    none,
    reg,        // a general register
    frame,      // memory at a register plus value
    immediate,  // value
    other       // anything else that is only read: other memory, parts of registers
  };
  Kind kind = none;
  uint8_t number = 0;  // of the register
  uint8_t bytes = 8;
  int64_t value = 0;
};

enum class Operation : uint8_t {
  nothing,     // no register, no memory: endbr64, nop, a comparison
  move,        // `from` to `to`; 4 bytes to a register clear its upper half, or copy the sign into it
  compute,     // the registers in `clobbers` get values that are not known here, and so does `to` if that is memory
  move_stack,  // value of `from` is added to rsp
  push,        // of `from`
  pop,         // to `to`
  call,        // to a fixed place
  branch,      // to a fixed place, on a condition
  jump,        // to a fixed place
  jump_by,     // to what a register or memory holds
  leave,       // return
  system_call,
  unknown  // what no rule knows
};

struct Instruction {
  Operation operation = Operation::unknown;
  uint8_t length = 0;
  uint8_t relative_at = 0;     // where in it a displacement lies that is relative to its end; 0: nowhere
  uint8_t relative_bytes = 0;  // 1 or 4
  int64_t relative = 0;
  uint16_t clobbers = 0;  // a bit for each register
  Operand to, from;
};

}  // namespace pinrail::patch

#endif
