// SPDX-License-Identifier: BSD-3-Clause
// patch.h - writes a jump into a function of this process while other threads run in it.
//
// Owns     nothing that is ever freed: a patch stays until the process ends.
// Threads  prepare() and is_in_place() may run together. activate() takes the lock of patches, one per shared object.
//          Other threads may run in the function and may sleep in system calls inside it all the while.
// Contexts start-up and API.
//
// patch/P1  One store writes the jump into one aligned block (decode/D1), so a thread sees either the old or the new
//     instruction.
// patch/P2  A thread that sleeps inside the function continues after the displaced instruction, where nothing was
//     changed.
// patch/P3  The store is made only if the block still has the bytes that prepare() read.
// patch/P4  A patch that another runtime wrote there before is called by the island's `original`; it is never lost.
#ifndef PINRAIL_BASE_PATCH_PATCH_H
#define PINRAIL_BASE_PATCH_PATCH_H

#include <cstring>

#include "base/patch/island.h"

namespace pinrail::patch {

// The first bytes of a function at one moment.
struct Snapshot {
  uint8_t bytes[kMaxDecoded] = {};

  static Snapshot of(uintptr_t function);
  // Returns whether the first `length` bytes are equal.
  bool agrees(const Snapshot& other, size_t length) const { return std::memcmp(bytes, other.bytes, length) == 0; }
};

#ifdef __aarch64__
// On Arm the instructions with which a function makes its system calls are patched, in up to kMaxPlaces places. Another
// copy of this library may have patched them before; its hook is `original`. If another runtime has written a far jump
// over the function's start, its first instruction is patched instead (patch_aarch64.cc).
struct Patch {
  static constexpr size_t kMaxPlaces = 4;
  uintptr_t function = 0;
  size_t count = 0;
  uint16_t places[kMaxPlaces] = {};  // offsets from the function's start
  uintptr_t islands[kMaxPlaces] = {};
  Island island;
  Snapshot own, seen;              // as below
  bool replaces_function = false;  // the hook's result is the function's, not that of its system call

  bool is_chained() const { return island.original != 0; }
  size_t guarded_length() const { return size_t{places[count - 1]} + 4; }
};
#else
struct Patch {
  uintptr_t function = 0;
  PatchPoint entry;
  Island island;
  Snapshot own;   // those with the jump, after activate()
  Snapshot seen;  // those that are expected: what prepare() read, then `own`, or what accept() found
  static constexpr bool replaces_function = true;

  bool is_chained() const { return entry.foreign != 0; }
  // The number of bytes from the function's start up to the jump's end, which must stay unchanged.
  size_t guarded_length() const { return entry.offset + kJumpLength; }
};
#endif

// Finds the place and builds the island; it does not change the function. NOT_SUPPORTED: the start of the function is
// not recognised, or this machine cannot be patched. NOT_AVAILABLE: the kernel or the processor lacks a required
// feature. Other errors as build_island().
Status prepare(uintptr_t function, const Signature& signature, const Disassembler& disassembler, Hook hook, void* arg,
               Patch* patch_out);

// Writes the jump. BUSY: the function was changed since prepare(); call prepare() again. PERM: the system does not
// permit code to be written. After BUSY and PERM nothing has changed; on Arm some of several places may be patched
// after BUSY.
Status activate(Patch* patch);

// In a forked child, before any other function of this file: makes the lock of patches anew.
void fork_reinit();

// Returns whether the code up to the end of the jump is still as activate() left it.
bool is_in_place(const Patch& patch);

// Whose bytes a function has.
enum class Bytes : uint8_t {
  expected,    // Patch::seen
  torn,        // each is an expected one, one of ours or one of the file: another party has put some back
  breakpoint,  // the same, but for instructions of a debugger or a probe that stop the processor
  foreign      // anything else: another runtime's patch
};
// file: the function's bytes in its file, which a probe of the kernel puts back when it ends.
Bytes whose(const Patch& patch, const Snapshot& file, const Snapshot& now);
// Writes what is torn whole again, in one store: an accepted patch of another runtime of which some bytes are left,
// else ours. BUSY: the bytes are no longer `now`, or they do not lie in one block. PERM as activate().
Status mend(Patch* patch, const Snapshot& file, const Snapshot& now);

// Accepts the function's current bytes as this patch's own: is_in_place() compares with them from now on.
void accept(Patch* patch);

// Call the other runtime's patch that a chained patch replaced; original: its Island::original. args: the function's
// six arguments; those of syscall() are a number and its six. Return what the function would. Hook context.
long call_original_hook(uintptr_t original, const long* args);
long call_original_syscall_hook(uintptr_t original, long number, const long* args);

}  // namespace pinrail::patch

#endif
