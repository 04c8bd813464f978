// SPDX-License-Identifier: BSD-3-Clause
// patch.h - a jump laid into a function of this process while other threads run in it.
//
// Owns     nothing that is ever given back: a patch stays until the process ends.
// Threads  prepare(), stands(): any. activate(): one at a time, which it sees to itself within one shared object.
//          Functions may be running, and threads may sleep in system calls inside them, all the while.
// Contexts start-up and API.
//
// patch/P1  One store writes the jump, into one aligned block (decode/D1): a thread sees the old instruction or the
//     new.
// patch/P2  A thread that sleeps inside the function goes on behind what the jump displaced: nothing there was changed.
// patch/P3  The store is made only if the block is still what prepare() saw.
// patch/P4  What another runtime laid there before is called by the island's `original`, never lost.
#ifndef PINRAIL_BASE_PATCH_PATCH_H
#define PINRAIL_BASE_PATCH_PATCH_H

#include <cstring>

#include "base/patch/island.h"

namespace pinrail::patch {

// A function's first bytes at one moment.
struct Snapshot {
  uint8_t bytes[kMaxDecoded] = {};

  static Snapshot of(uintptr_t function);
  // Whether the first so many bytes are equal.
  bool agrees(const Snapshot& other, size_t length) const { return std::memcmp(bytes, other.bytes, length) == 0; }
};

struct Patch {
  uintptr_t function = 0;
  Entry entry;
  Island island;
  Snapshot seen;  // by prepare(); after activate() what stands there with the jump

  bool is_chained() const { return entry.foreign != 0; }
  // Bytes from the function's start that the jump and the way to it need.
  size_t guarded_length() const { return entry.offset + kJumpLength; }
};

// Finds the place and builds the island; nothing is changed yet. NOT_SUPPORTED: the start of the function is not known,
// or this is no machine for it; NOT_AVAILABLE: the kernel or the processor lacks what makes it safe; else as
// build_island().
Status prepare(uintptr_t function, const Signature& signature, const Disassembler& disassembler, Hook hook, void* arg,
               Patch* patch_out);

// Lays the jump. BUSY: somebody else changed the function since prepare(): begin again. PERM: the system does not let
// code be written. Only after BUSY and PERM nothing has changed.
Status activate(Patch* patch);

// In a forked child, before anything else there: whoever held the lock of patches is not here.
void fork_reinit();

// Whether what activate() laid, and the way to it, stands unchanged.
bool stands(const Patch& patch);

// What stands there now is accepted as the patch's own doing from here on.
void accept(Patch* patch);

}  // namespace pinrail::patch

#endif
