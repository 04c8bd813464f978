// SPDX-License-Identifier: BSD-3-Clause
// island.h - the code near a function to which its jumps lead, and what processors do differently.
//
// Owns     nothing. Islands are never freed.
// Threads  All functions may run together, except write_jump(), which the lock of patches protects.
// Context  start-up or API; map_near() maps memory and may read /proc/self/maps.
//
// An island follows its record. It saves what a call changes, calls the hook, and goes on in the function: behind the
// system call if the hook has made it, else where the function makes it.
#ifndef PINRAIL_BASE_PATCH_ISLAND_H
#define PINRAIL_BASE_PATCH_ISLAND_H

#include "base/patch/patch.h"

namespace pinrail::patch {

constexpr uintptr_t kPage = 4096;
constexpr size_t kBlock = 16;  // aligned bytes that an x86-64 processor fetches at once
// Another copy of the library reads records, so the mark has to change with the layout.
constexpr uint64_t kMark = 0x334c4941524e4950;  // "PINRAIL3"

// When the code does not go on behind the system call.
enum class Leaves : uint8_t { never, on_success, always };

struct alignas(16) Record {
  uintptr_t enter;   // pinrail_patch_enter_hook
  uintptr_t resume;  // where the function goes on that makes the call itself
  uintptr_t behind;  // where it goes on after the hook has made the call
  uintptr_t called;  // the function that a replaced call calls; 0: none
  Hook hook;
  void* arg;
  int number, or_number;  // as in Calls
  Leaves leaves;          // the code behind the call returns the kernel's result, and so does the island
  Place place;
  uint64_t mark;               // kMark
  uint8_t bytes[kJumpLength];  // of the function at the place, without any patch of this library
};
// The code of islands and of pinrail_patch_enter_hook reads these.
static_assert(offsetof(Record, enter) == 0 && offsetof(Record, resume) == 8 && offsetof(Record, behind) == 16 &&
                  offsetof(Record, called) == 24 && offsetof(Record, leaves) == 56 && sizeof(Record) == 80,
              "as the assembler has it");
constexpr size_t kLongestIsland = 96;  // bytes
static_assert(Snapshot::kMaxPlaces * (sizeof(Record) + kLongestIsland) < kPage, "a function's islands are on one page");

// Maps a writable page at most `reach` bytes away from `near`. NULL if there is no such gap.
uint8_t* map_near(uintptr_t near, uintptr_t reach);

// The record of the island at that address, if an island of this library is there; otherwise NULL.
const Record* record_of(uintptr_t island);

// Calls the record's hook if the system call is one that it is to see. is_libcs: the result is to be as libc's
// functions give it, with errno. Hook context.
bool call_hook(const Record& record, long number, const long* args, bool is_libcs, long* result_out);

// Of each processor: code_x86_64.cc, code_aarch64.cc.
extern const uintptr_t kReach;  // of a jump to an island
// Finds the places in a copy of the function's code, followed by 16 more bytes. is_whole: the code ends with the
// function; otherwise the first place is the only one. False: a system call is not recognised, or there is none.
bool find_places(const uint8_t* code, size_t length, bool is_whole, const Calls& calls, Patch* patch);
// Writes the island behind its record, and completes the record. NULL: something is out of reach.
uint8_t* write_island(uint8_t* at, const uint8_t* code, uintptr_t function, Record* record);
template <size_t N>
bool is(const uint8_t* code, const uint8_t (&expected)[N]) {
  return std::memcmp(code, expected, N) == 0;
}
inline int32_t int_at(const uint8_t* code) {
  int32_t value;
  std::memcpy(&value, code, sizeof(value));
  return value;
}
// Writes code from an address on.
class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}

  uint8_t* end() const { return at_; }
  uintptr_t here() const { return reinterpret_cast<uintptr_t>(at_); }
  void bytes(const void* from, size_t length) {
    std::memcpy(at_, from, length);
    at_ += length;
  }

 private:
  uint8_t* at_;
};
void put_jump(uintptr_t at, uintptr_t island, uint8_t* jump_out);
// Where the jump leads of which `code` is a copy; 0: it is none.
uintptr_t target_of_jump(const uint8_t* code, uintptr_t at);
bool is_breakpoint(const uint8_t* bytes, size_t at);  // whether the byte belongs to one
// Replaces the bytes of one jump, which other threads may be executing. False: they are not `before` any more.
bool write_jump(uintptr_t at, const uint8_t* before, const uint8_t* after);
bool can_write_jumps();
// After it each other thread executes a serialising instruction before it continues, so it runs the new code.
void synchronise();

}  // namespace pinrail::patch

// The code that islands jump to (x86-64) or call (64-bit Arm), which calls the record's hook. It runs on each thread
// that comes to a patched place; C++ code must not call it.
extern "C" {
__attribute__((visibility("hidden"))) void pinrail_patch_enter_hook(void);
// Called by it. Calls the record's hook with the arguments of the system call. Returns 1 if the hook made the call;
// then the result is among the registers. "used": the compiler does not see that call, and with -flto would drop it.
__attribute__((used, visibility("hidden"))) long pinrail_patch_call_hook(const void* record, void* registers);
}

// Their names for the assembler, with the prefix that an embedded build gives to it (framework/symbols).
#define PINRAIL_TEXT_OF(name) #name
#define PINRAIL_TEXT(name) PINRAIL_TEXT_OF(name)
#define PINRAIL_ENTER_HOOK PINRAIL_TEXT(pinrail_patch_enter_hook)
#define PINRAIL_CALL_HOOK PINRAIL_TEXT(pinrail_patch_call_hook)

#endif
