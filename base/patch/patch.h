// SPDX-License-Identifier: BSD-3-Clause
// patch.h - calls a hook where a function of this process makes its system call, while other threads run in it.
//
// Owns     nothing that is ever freed: a patch stays until the process ends.
// Threads  All functions may run together: prepare(), activate() and mend() take the lock of patches, one per shared
//          object. Other threads may run in the function and may sleep in system calls inside it all the while.
// Contexts start-up and API.
//
// A jump replaces one instruction that is at least as long, and every thread sees either the one or the other: one
// store into an aligned block writes it. Where it lies across two blocks of 16 bytes (x86-64), threads first run in a
// loop of one instruction there. A thread that sleeps in the kernel returns behind the system call's instruction, where
// nothing is changed. A jump is written only if its place still has the bytes that prepare() read. To the function the
// hook looks like the kernel: it changes no register except the result. A hook that does not make the system call
// leaves that to the function's own code, in its own frame. Another copy of this library may have patched the place:
// its hook is `original`, to be called in place of the system call.
#ifndef PINRAIL_BASE_PATCH_PATCH_H
#define PINRAIL_BASE_PATCH_PATCH_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/core/status.h"

namespace pinrail::patch {

// A hook. It runs in hook context. arg: the pointer given to prepare(). number: of the system call. args: its six
// arguments. True: it has made the system call, and *result_out is what the kernel returned. False: the function makes
// it.
using Hook = bool (*)(void* arg, long number, const long* args, long* result_out);

// The system calls of a function that a hook is to see.
struct Calls {
  int number;
  int or_number = number;  // C libraries differ: open() may use SYS_openat
};
constexpr int kAnyCall = -1;  // the function's caller says which: syscall()
constexpr int kNoCall = -2;   // not known: the hook is called at the function's start, and may not make the call

#ifdef __aarch64__
constexpr size_t kJumpLength = 4;
#else
constexpr size_t kJumpLength = 5;
#endif
constexpr size_t kMaxCode = 512;  // the bytes of a function in which its system calls are looked for

enum class Kind : uint8_t {
  system_call,  // in front of the system call's instruction; on 64-bit Arm in its place
  call,         // in place of the call of a function that makes the system call
  before_call,  // in front of such a call
  start         // near the function's start, where its arguments are in registers
};

struct Place {
  uint16_t offset = 0;  // from the function's start
  uint8_t length = 0;   // of the code from there that runs from a copy, or that the hook replaces
  Kind kind = Kind::system_call;
  uint8_t number_at = 0;    // call: which of its arguments is the system call's number
  uint8_t relative_at = 0;  // start: the offset of a displacement from the instruction's end; 0: none
};

struct Record;  // island.h

struct Patch;

// The bytes of a function that others may change: its first 16, and its places.
struct Snapshot {
  static constexpr size_t kStart = 16;
  static constexpr size_t kMaxPlaces = 4;
  uint8_t start[kStart] = {};
  uint8_t places[kMaxPlaces][kJumpLength] = {};

  // code: the function, or a copy of its first kMaxCode bytes.
  static Snapshot of(const Patch& patch, const uint8_t* code);
  static Snapshot of(const Patch& patch);
  bool operator==(const Snapshot& other) const { return std::memcmp(this, &other, sizeof(other)) == 0; }
};

struct Patch {
  uintptr_t function = 0;
  size_t count = 0;  // of places; 0: the function is not patched
  Place places[Snapshot::kMaxPlaces];
  uintptr_t islands[Snapshot::kMaxPlaces] = {};
  const Record* original = nullptr;  // of another copy of this library, which was there first; NULL: none
  Snapshot bare;                     // without any: what a probe of the kernel puts back when it ends
  Snapshot own;                      // with the jumps
  Snapshot seen;                     // what is expected: `own`, or what accept() found
  Status written = PINRAIL_SUCCESS;  // of the last activate(); an error: the function counts as not patched
};

// Finds the places and builds the islands; it does not change the function. NOT_SUPPORTED: the function has a system
// call at a place that is not recognised or cannot be written, or none, or this machine cannot be patched.
// OUT_OF_RESOURCE: there is no free page within the jump's reach. PERM: the system does not permit new code.
Status prepare(uintptr_t function, const Calls& calls, Hook hook, void* arg, Patch* patch_out);

// Writes the jumps of several functions, of each shared object together. Patch::written of each: BUSY: the function was
// changed since prepare(); call prepare() again. PERM: the system does not permit new code, or code to be written.
// NOT_AVAILABLE: the kernel or the processor lacks a required feature. After BUSY some of a function's places may be
// patched, and they work.
void activate(Patch* const* patches, size_t count);
inline Status activate(Patch* patch) {
  activate(&patch, 1);
  return patch->written;
}

// In a forked child, before any other function of this file: makes the lock of patches anew.
void fork_reinit();

// Returns whether the bytes are those that are expected.
bool is_in_place(const Patch& patch);

// Whose bytes the places have.
enum class Bytes : uint8_t {
  torn,        // each is one of ours or one of the function's: another party has put some back
  breakpoint,  // the same, but for instructions of a debugger or a probe that stop the processor
  foreign      // anything else: another runtime's patch, at a place or at the function's start
};
Bytes whose(const Patch& patch, const Snapshot& now);
// Writes jumps that are torn whole again. BUSY: the bytes are no longer `now`. PERM as activate().
Status mend(Patch* patch, const Snapshot& now);

// The first bytes of the function, for a message: a developer needs them to teach find_places() a new one.
std::string bytes_of(uintptr_t function);

// Expects the function's current bytes from now on.
void accept(Patch* patch);

// Keeps E7: the shared object of a hook stays mapped. (The main program needs no pinning.) False: that is not possible.
bool pin_object_of(const void* hook);

// Calls the hook of another copy of this library, which may make the system call. Hook context.
bool call_original_hook(const Record* original, long number, const long* args, long* result_out);

}  // namespace pinrail::patch

#endif
