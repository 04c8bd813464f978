// SPDX-License-Identifier: BSD-3-Clause
// instruction.h - the properties of one x86-64 instruction that the rules of decode.h use.
#ifndef PINRAIL_BASE_PATCH_INSTRUCTION_H
#define PINRAIL_BASE_PATCH_INSTRUCTION_H

#include <cstddef>
#include <cstdint>

namespace pinrail::patch {

// General registers, with their numbers in instructions.
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
    other       // any other operand that is only read: other memory, parts of registers
  };
  Kind kind = none;
  uint8_t number = 0;  // of the register
  uint8_t bytes = 8;
  int64_t value = 0;
};

enum class Operation : uint8_t {
  nothing,     // writes no register and no memory: endbr64, nop, a comparison
  move,        // `from` to `to`; 4 bytes to a register clear its upper half, or extend the sign into it
  compute,     // gives unknown values to the registers in `clobbers`, and to `to` if that is memory
  move_stack,  // adds the value of `from` to rsp
  push,        // pushes `from`
  pop,         // pops into `to`
  call,        // calls a fixed address
  branch,      // jumps to a fixed address on a condition
  jump,        // jumps to a fixed address
  jump_by,     // jumps to an address in a register or in memory
  leave,       // returns
  system_call,
  unknown  // any other instruction
};

struct Instruction {
  Operation operation = Operation::unknown;
  uint8_t length = 0;
  uint8_t relative_at = 0;     // offset of a displacement that is relative to the instruction's end; 0: none
  uint8_t relative_bytes = 0;  // 1 or 4
  int64_t relative = 0;
  uint16_t clobbers = 0;  // one bit per register
  Operand to, from;
};

}  // namespace pinrail::patch

#endif
