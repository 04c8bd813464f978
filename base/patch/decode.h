// SPDX-License-Identifier: BSD-3-Clause
// decode.h - finds the place in a function where a jump of five bytes may be written, and what must be undone there.
//
// Threads  All functions may run together; they only read.
// Context  start-up or API.
//
// decode/D1  The jump replaces one instruction of five bytes or more (or another runtime's patch), so that no thread
//     can be between its bytes. It lies in one aligned block of 16 bytes, so that one store writes it. No branch that
//     is seen in the function leads into it.
// decode/D2  The instructions before the jump form a straight line from the start and write only registers and the
//     function's own new part of the stack. At the jump, each argument, each register that the function preserves for
//     its caller, and the stack pointer are known to be in some place, and the code `undo` restores them. An int
//     argument may have been extended to 64 bits in place.
// decode/D3  The function has made no system call before the jump. A call of another function before the jump is
//     accepted only if the function's own system call is seen after the jump.
// decode/D4  Code that is not recognised is refused; the decoder never guesses.
#ifndef PINRAIL_BASE_PATCH_DECODE_H
#define PINRAIL_BASE_PATCH_DECODE_H

#include <cstddef>
#include <cstdint>

#include "base/core/status.h"
#include "base/patch/disassemble.h"

namespace pinrail::patch {

constexpr size_t kJumpLength = 5;
#ifdef __aarch64__
constexpr size_t kMaxDecoded = 224;  // the bytes of a function in which its system calls are searched
#else
constexpr size_t kMaxDecoded = 48;  // the bytes of a function up to the end of the displaced instruction
#endif
constexpr size_t kMaxSeen = 256;  // the bytes in which branches are searched
constexpr size_t kMaxUndo = 128;
constexpr size_t kMaxMoved = 4;  // instructions with a relative displacement, which is corrected in a copy

constexpr int kAnyCall = -2;

// The facts about a function that its declaration gives.
struct Signature {
  uint8_t arguments = 6;  // the number of arguments in registers
  uint8_t ints = 0;       // one bit per argument: it has 32 bits
  int system_call = -1;   // the system call that it makes; -1: not known; kAnyCall: its first argument names it
};

struct PatchPoint {
  size_t offset = 0;      // where the jump is written
  size_t length = 0;      // the length of the displaced instruction or patch
  uintptr_t foreign = 0;  // the target of another runtime's patch at this place; 0: none
  uint8_t undo[kMaxUndo] = {};
  size_t undo_length = 0;
  // Offsets of displacements that are relative to their instruction's address, up to the end of the displaced bytes.
  uint8_t moved_at[kMaxMoved] = {};
  size_t moved_count = 0;
};

// Finds the place for a jump. code: a copy of the function's bytes, at least kMaxDecoded of them. NOT_SUPPORTED: no
// place is known to be safe.
Status decode(const uint8_t* code, size_t length, uintptr_t address, const Signature& signature,
              const Disassembler& disassembler, PatchPoint* entry_out);

// Returns whether an aligned block of `block` bytes (8 or 16) contains a whole jump at the address.
constexpr bool fits_block(uintptr_t address, size_t block) { return address % block + kJumpLength <= block; }

}  // namespace pinrail::patch

#endif
