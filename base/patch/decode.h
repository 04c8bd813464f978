// SPDX-License-Identifier: BSD-3-Clause
// decode.h - what stands at the start of a function, and where in it a jump of five bytes may be laid.
//
// Threads  any; it only reads. Any context.
//
// D1  The jump takes the place of one instruction of five bytes or more (or of another runtime's patch), so that no
//     thread can stand inside it, and lies in one aligned block of 16 bytes, so that one store writes it.
// D2  What stands before it changes nothing that a function is given, or is undone by known code.
// D3  What is not known is refused: nothing is guessed.
#ifndef PINRAIL_BASE_PATCH_DECODE_H
#define PINRAIL_BASE_PATCH_DECODE_H

#include <cstddef>
#include <cstdint>

#include "base/core/status.h"

namespace pinrail::patch {

constexpr size_t kJumpLength = 5;
constexpr size_t kMostDecoded = 32;  // bytes of a function that decode() may look at
constexpr size_t kMostUndo = 24;

struct Entry {
  size_t offset = 0;       // of the jump's place
  size_t length = 0;       // of what the jump displaces
  size_t relative_at = 0;  // where in that a displacement relative to its end lies; 0: nowhere
  uintptr_t foreign = 0;   // where the patch that stands there leads; 0: there is none
  uint8_t undo[kMostUndo] = {};
  size_t undo_length = 0;
};

// code: kMostDecoded bytes as they stand at that address. NOT_SUPPORTED: no place for a jump is known.
Status decode(const uint8_t* code, uintptr_t address, Entry* entry_out);

// Whether a store of one aligned block of that many bytes (8 or 16) covers a jump there.
constexpr bool fits_block(uintptr_t address, size_t block) { return address % block + kJumpLength <= block; }

}  // namespace pinrail::patch

#endif
