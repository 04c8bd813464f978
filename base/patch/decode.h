// SPDX-License-Identifier: BSD-3-Clause
// decode.h - where in a function a jump of five bytes may be laid, and what must be rolled back there.
//
// Threads  any; it only reads. Any context but hooks.
//
// decode/D1  The jump takes the place of one instruction of five bytes or more (or of another runtime's patch), so that
//     no thread can stand inside it, and lies in one aligned block of 16 bytes, so that one store writes it. No branch
//     of the function that is seen leads there.
// decode/D2  What runs before it, in a straight line from the start, writes nothing but registers and its own new part
//     of the stack. At the jump every argument, every register that belongs to the caller, and the stack pointer are
//     still known to stand somewhere: `undo` puts them back. An argument that is an int may have been widened in place.
// decode/D3  Before the jump the function has not asked the kernel. A call before it is passed only if the function's
//     own system call is seen to come after the jump.
// decode/D4  What is not known is refused: nothing is guessed.
#ifndef PINRAIL_BASE_PATCH_DECODE_H
#define PINRAIL_BASE_PATCH_DECODE_H

#include <cstddef>
#include <cstdint>

#include "base/core/status.h"
#include "base/patch/disassemble.h"

namespace pinrail::patch {

constexpr size_t kJumpLength = 5;
constexpr size_t kMaxDecoded = 48;  // bytes of a function up to the end of what the jump displaces
constexpr size_t kMaxSeen = 256;    // bytes in which branches are looked for
constexpr size_t kMaxUndo = 128;
constexpr size_t kMaxMoved = 4;  // instructions that must be changed when they are copied elsewhere

// What is known of a function from its declaration.
struct Signature {
  uint8_t arguments = 6;  // in registers
  uint8_t ints = 0;       // a bit for each that has 32 bits
  int system_call = -1;   // the one that it makes; -1: not known
};

struct Entry {
  size_t offset = 0;      // of the jump's place
  size_t length = 0;      // of what the jump displaces
  uintptr_t foreign = 0;  // where the patch that stands there leads; 0: there is none
  uint8_t undo[kMaxUndo] = {};
  size_t undo_length = 0;
  // Displacements, up to the end of what is displaced, that are relative to where their instruction stands.
  uint8_t moved_at[kMaxMoved] = {};
  size_t moved_count = 0;
};

// code: as it stands at that address, kMaxDecoded bytes at least. NOT_SUPPORTED: no place for a jump is known.
Status decode(const uint8_t* code, size_t length, uintptr_t address, const Signature& signature,
              const Disassembler& disassembler, Entry* entry_out);

// Whether a store of one aligned block of that many bytes (8 or 16) covers a jump there.
constexpr bool fits_block(uintptr_t address, size_t block) { return address % block + kJumpLength <= block; }

}  // namespace pinrail::patch

#endif
