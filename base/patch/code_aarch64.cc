// SPDX-License-Identifier: BSD-3-Clause
// Places and jumps on 64-bit Arm. Start-up or API context; write_jump() is called with the lock of patches held.
//
// A branch to an island replaces the instruction with which the function makes its system call (svc), or the call (bl)
// of the function that makes it. The architecture permits one thread to change these instructions while another one
// executes them, and at that place all arguments are where the kernel expects them.
#include <algorithm>

#include "base/patch/island.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__aarch64__)

namespace pinrail::patch {

// A branch reaches 128 MiB in both directions; less what may lie between a function and another one that it calls,
// which is at most the largest library.
const uintptr_t kReach = (uintptr_t{128} << 20) - (uintptr_t{8} << 20);

namespace {

constexpr size_t kWord = 4;
constexpr uint32_t kSupervisorCall = 0xd4000001;  // svc #0
constexpr uint32_t kBranch = 0x14000000, kCall = 0x94000000, kOperation = 0xfc000000;

uint32_t word_of(const uint8_t* code) {
  uint32_t word;
  std::memcpy(&word, code, sizeof(word));
  return word;
}
// Returns whether the word is a mov of a 16-bit number to that register, of 32 or 64 bits.
bool is_number(uint32_t word, unsigned reg, int number) {
  return (word & 0x7fffffff) == (0x52800000 | static_cast<uint32_t>(number) << 5 | reg);
}
uint32_t branch(uintptr_t from, uintptr_t to) {
  return kBranch | (static_cast<uint32_t>(static_cast<int64_t>(to - from) >> 2) & ~kOperation);
}
// Returns where the branch or call at that address leads.
uintptr_t target_of(uint32_t word, uintptr_t from) {
  return from + static_cast<uintptr_t>(static_cast<int64_t>(static_cast<int32_t>(word << 6) >> 6) * 4);
}

// The words of an island, in front of what follows the hook.
constexpr uint32_t kSaveFrame = 0xa9be7bfd;    // stp x29, x30, [sp, #-32]!
constexpr uint32_t kSaveScratch = 0xa90147f0;  // stp x16, x17, [sp, #16]
constexpr uint32_t kLoadRecord = 0x10000010;   // adr x16, of a distance that is added
constexpr uint32_t kLoadEntry = 0xf9400211;    // ldr x17, [x16]
constexpr uint32_t kCallEntry = 0xd63f0220;    // blr x17
constexpr uint32_t kSkipIfNot = 0xb4000091;    // cbz x17, four words further on
constexpr uint32_t kLoadScratch = 0xa94147f0;  // ldp x16, x17, [sp, #16]
constexpr uint32_t kLoadFrame = 0xa8c27bfd;    // ldp x29, x30, [sp], #32

class WordWriter : public Writer {
 public:
  using Writer::Writer;

  void word(uint32_t value) { bytes(&value, sizeof(value)); }
  // An adr of an address of less than 1 MiB away.
  void address_of(uint32_t instruction, uintptr_t address) {
    const auto distance = static_cast<uint32_t>(address - here());
    word(instruction | (distance & 3) << 29 | (distance >> 2 & 0x7ffff) << 5);
  }
};

}  // namespace

bool find_places(const uint8_t* code, size_t length, bool is_whole, const Calls& calls, Patch* patch) {
  bool is_told = false;
  size_t call_count = 0;
  Place call;
  if (calls.number == kNoCall) return false;
  // Of a function whose length is not known only the first instructions are examined.
  const size_t end = is_whole ? length : std::min(length, 4 * kWord);
  for (size_t at = 0; at + kWord <= end; at += kWord) {
    const uint32_t word = word_of(code + at);
    const uintptr_t island = target_of_jump(code + at, patch->function + at);
    const Record* const record = island == 0 ? nullptr : record_of(island);
    is_told = is_told || is_number(word, 6, calls.number);
    Place place{static_cast<uint16_t>(at), kWord, Kind::system_call, 0, 0};
    if (record != nullptr) place.kind = record->place.kind;
    const bool is_call = (word & kOperation) == kCall || (record != nullptr && place.kind == Kind::call);
    if (is_call) {
      place.kind = Kind::call;
      ++call_count;
      call = place;
    } else if (word == kSupervisorCall || record != nullptr) {
      if (patch->count == Snapshot::kMaxPlaces) return false;
      patch->places[patch->count++] = place;
    }
  }
  // The only call, if the system call's number is passed there as the seventh argument.
  if (patch->count == 0 && is_told && call_count == 1) patch->places[patch->count++] = call;
  return patch->count != 0;
}

uint8_t* write_island(uint8_t* at, const uint8_t* code, uintptr_t function, Record* record) {
  const Place& place = record->place;
  const uintptr_t from = function + place.offset;
  const bool is_first = record->behind == 0;  // no other copy of this library was there
  if (is_first && place.kind == Kind::call) record->called = target_of(word_of(code + place.offset), from);
  record->behind = from + kWord;
  WordWriter writer(at);
  writer.word(kSaveFrame);
  writer.word(kSaveScratch);
  writer.address_of(kLoadRecord, reinterpret_cast<uintptr_t>(record));
  writer.word(kLoadEntry);
  writer.word(kCallEntry);
  writer.word(kSkipIfNot);
  const auto write_end_of_frame = [&writer] {
    writer.word(kLoadScratch);
    writer.word(kLoadFrame);
  };
  write_end_of_frame();
  writer.word(branch(writer.here(), record->behind));
  write_end_of_frame();
  if (place.kind == Kind::system_call) {
    writer.word(kSupervisorCall);
    writer.word(branch(writer.here(), record->behind));
    return writer.end();
  }
  // As a call does: the function returns behind the place.
  constexpr uint32_t kLoadReturn = 0x5800005e;  // ldr x30, of the two words behind the branch
  writer.word(kLoadReturn);
  writer.word(branch(writer.here(), record->called));
  for (const unsigned shift : {0U, 32U}) writer.word(static_cast<uint32_t>(record->behind >> shift));
  return writer.end();
}

void put_jump(uintptr_t at, uintptr_t island, uint8_t* jump_out) {
  const uint32_t word = branch(at, island);
  std::memcpy(jump_out, &word, sizeof(word));
}

uintptr_t target_of_jump(const uint8_t* code, uintptr_t at) {
  const uint32_t word = word_of(code);
  return (word & kOperation) == kBranch ? target_of(word, at) : 0;
}

bool is_breakpoint(const uint8_t* bytes, size_t) {
  constexpr uint32_t kBreakpoint = 0xd4200000, kNumber = 0x1fffe0;
  return (word_of(bytes) & ~kNumber) == kBreakpoint;
}

bool write_jump(uintptr_t at, const uint8_t* before, const uint8_t* after) {
  uint32_t old_word = word_of(before), new_word = word_of(after);
  auto* const word = reinterpret_cast<uint32_t*>(at);  // NOLINT(performance-no-int-to-ptr): an address of code
  if (!__atomic_compare_exchange(word, &old_word, &new_word, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return false;
  __builtin___clear_cache(reinterpret_cast<char*>(word), reinterpret_cast<char*>(word + 1));
  return true;
}

bool can_write_jumps() { return true; }

}  // namespace pinrail::patch

// The entry of hooks on 64-bit Arm, which islands call. Hook context; no lock.
// registers: the values of x0 to x8. A called function gets the number as its seventh argument, and returns as libc's
// functions do.
long pinrail_patch_call_hook(const void* record_pointer, void* registers) {
  using namespace pinrail::patch;
  const auto& record = *static_cast<const Record*>(record_pointer);
  auto* const x = static_cast<long*>(registers);
  const bool is_call = record.place.kind == Kind::call;
  return call_hook(record, x[is_call ? 6 : 8], x, is_call, &x[0]);
}

// The kernel changes only x0, so all other registers that a function may change are saved here. x16 points to the
// record; the island saves x16, x17, x29 and x30. On return x17 tells whether the hook has made the call.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden " PINRAIL_ENTER_HOOK
    "\n"
    ".globl " PINRAIL_ENTER_HOOK
    "\n"
    ".type " PINRAIL_ENTER_HOOK ", %function\n" PINRAIL_ENTER_HOOK
    ":\n"
    ".cfi_startproc\n"
    "hint #34\n"  // bti c
    "sub sp, sp, #688\n"
    ".cfi_adjust_cfa_offset 688\n"
    "stp x29, x30, [sp]\n"
    ".cfi_offset 29, -688\n"
    ".cfi_offset 30, -680\n"
    "mov x29, sp\n"
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
    "str x\\n, [sp, #16 + 8*\\n]\n"
    ".endr\n"
    "mrs x17, nzcv\n"
    "stp x18, x17, [sp, #144]\n"
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "
    "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
    "str q\\n, [sp, #160 + 16*\\n]\n"
    ".endr\n"
    "mov x0, x16\n"
    "add x1, sp, #16\n"
    "bl " PINRAIL_CALL_HOOK
    "\n"
    "mov x16, x0\n"
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "
    "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
    "ldr q\\n, [sp, #160 + 16*\\n]\n"
    ".endr\n"
    "ldp x18, x17, [sp, #144]\n"
    "msr nzcv, x17\n"
    "mov x17, x16\n"
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
    "ldr x\\n, [sp, #16 + 8*\\n]\n"
    ".endr\n"
    "ldp x29, x30, [sp]\n"
    ".cfi_restore 29\n"
    ".cfi_restore 30\n"
    "add sp, sp, #688\n"
    ".cfi_adjust_cfa_offset -688\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size " PINRAIL_ENTER_HOOK ", . - " PINRAIL_ENTER_HOOK "\n");

#endif
