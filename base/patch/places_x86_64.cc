// SPDX-License-Identifier: BSD-3-Clause
// Where functions are patched on x86-64. Start-up or API context.
//
// In front of the instruction syscall stands one that loads the system call's number (mov $number, %eax), or in
// syscall() the sixth argument: five bytes at least. A jump replaces it. The island executes a copy of it, and all
// arguments are where the kernel expects them. Functions that are cancellation points may call another one with the
// number as an argument; then the call is replaced. Where no jump can be written there, and in functions that make no
// system call of their own, an instruction near the function's start is replaced.
#include <algorithm>

#include "base/patch/island.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::patch {

namespace {

constexpr uint8_t kJump = 0xe9, kCall = 0xe8;
constexpr uint8_t kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
constexpr size_t kLongest = 16;  // of an instruction

struct Instruction {
  size_t length = 0;       // 0: not known
  size_t relative_at = 0;  // the offset of a displacement that is relative to the instruction's end
};

// Reads the operand byte and what follows it.
Instruction read_operands(const uint8_t* code, size_t at, size_t immediate) {
  const unsigned mod = code[at] >> 6, rm = code[at] & 7;
  Instruction read;
  size_t displacement = mod == 1 ? 1 : mod == 2 ? 4 : 0;
  ++at;
  if (mod != 3 && rm == 4) {
    if (mod == 0 && (code[at] & 7) == 5) displacement = 4;
    ++at;
  } else if (mod == 0 && rm == 5) {
    displacement = 4;
    read.relative_at = at;
  }
  read.length = at + displacement + immediate;
  return read;
}

// Knows the moves, additions, comparisons and pushes that stand before system calls and at functions' starts. None of
// them branches.
Instruction read_plain(const uint8_t* code) {
  if (is(code, kEndbr64)) return {sizeof(kEndbr64), 0};
  size_t at = code[0] == 0x64 ? 1 : 0;  // of %fs
  const bool has_prefix = (code[at] & 0xf0) == 0x40, is_wide = has_prefix && (code[at] & 8) != 0;
  if (has_prefix) ++at;
  const uint8_t operation = code[at++];
  if ((operation & 0xf8) == 0x50) return {at, 0};                      // push
  if ((operation & 0xf8) == 0xb8) return {at + (is_wide ? 8 : 4), 0};  // mov of a number
  constexpr uint8_t kWithoutNumber[] = {0x01, 0x09, 0x21, 0x29, 0x31, 0x39, 0x63, 0x85, 0x89, 0x8b, 0x8d};
  if (std::memchr(kWithoutNumber, operation, sizeof(kWithoutNumber)) != nullptr) return read_operands(code, at, 0);
  switch (operation) {
    case 0x68: return {at + 4, 0};  // push of a number
    case 0x6a: return {at + 1, 0};
    case 0x80:
    case 0x83: return read_operands(code, at, 1);
    case 0x81: return read_operands(code, at, 4);
    case 0xc7:
    case 0xf7: return (code[at] & 0x38) == 0 ? read_operands(code, at, 4) : Instruction{};  // mov; test
    default: return {};
  }
}

// Whether plain instructions that may be executed elsewhere fill the code from `at` to `end`.
bool is_plain(const uint8_t* code, size_t at, size_t end) {
  while (at < end) {
    const Instruction next = read_plain(code + at);
    if (next.length == 0 || next.relative_at != 0) return false;
    at += next.length;
  }
  return at == end;
}

bool is_wanted(const Calls& calls, int number) {
  return number == calls.number || number == calls.or_number || calls.number == kAnyCall;
}

// Looks for the places of one function.
class Search {
 public:
  Search(const uint8_t* code, size_t length, bool is_whole, const Calls& calls, Patch* patch)
      : code_(code), length_(length), is_whole_(is_whole), calls_(calls), patch_(patch) {}

  bool run() {
    if (calls_.number != kNoCall && find_jumps_of_ours() && find_calls_of_kernel() && are_writable()) {
      return patch_->count != 0;
    }
    patch_->count = 0;
    return find_jumps_of_ours() && patch_->count == 0 ? find_start() : patch_->count != 0;
  }

 private:
  bool is_done() const { return !is_whole_ && patch_->count != 0; }

  bool add(const Place& place) {
    if (patch_->count == Snapshot::kMaxPlaces) return false;
    patch_->places[patch_->count++] = place;
    return true;
  }

  // Another copy of this library may have written jumps.
  bool find_jumps_of_ours() {
    for (size_t at = 0; at + kJumpLength <= length_; ++at) {
      const uintptr_t target = target_of_jump(code_ + at, patch_->function + at);
      const Record* const record = target == 0 ? nullptr : record_of(target);
      if (record != nullptr && record->place.offset == at && !add(record->place)) return false;
    }
    return true;
  }

  bool is_covered(size_t system_call) const {
    return std::any_of(patch_->places, patch_->places + patch_->count,
                       [=](const Place& place) { return size_t{place.offset} + place.length == system_call; });
  }

  // Whether the instruction may be the one that a jump replaces in front of a system call.
  bool is_load(size_t at) const {
    constexpr uint8_t kStoreNumber[] = {0xc7, 0x04, 0x24};  // musl's syscall()
    const bool is_word = code_[at] == 0x48 || code_[at] == 0x4c;
    const bool is_move = is_word && (code_[at + 1] == 0x89 || code_[at + 1] == 0x8b);
    const bool is_of_stack = (code_[at + 2] & 0xc7) == 0x44 && code_[at + 3] == 0x24;
    if (calls_.number != kAnyCall) return code_[at] == 0xb8;
    return (is_move && is_of_stack) || is(code_ + at, kStoreNumber);
  }

  // False: it is not known how the system call gets its number.
  bool find_system_call(size_t system_call) {
    constexpr size_t kFarthest = 20;
    if (is_covered(system_call)) return true;
    for (size_t length = kJumpLength; length <= kFarthest && length <= system_call; ++length) {
      const size_t at = system_call - length;
      if (!is_load(at) || !is_plain(code_, at, system_call)) continue;
      if (calls_.number != kAnyCall && !is_wanted(calls_, int_at(code_ + at + 1))) return true;
      return add({static_cast<uint16_t>(at), static_cast<uint8_t>(length), Kind::system_call, 0, 0});
    }
    return false;
  }

  // Which argument the instruction loads with a wanted number: the seventh, which is pushed, in glibc from 2.41 on; the
  // second in glibc 2.44; the first in musl. -1: none.
  int loads_number_as(size_t at) const {
    if (code_[at] == 0x6a) return is_wanted(calls_, code_[at + 1]) ? 6 : -1;
    if (!is_wanted(calls_, int_at(code_ + at + 1))) return -1;
    return code_[at] == 0x68 ? 6 : code_[at] == 0xbe ? 1 : code_[at] == 0xbf ? 0 : -1;
  }

  // Whether a loop of one instruction of two bytes fits into a block there.
  bool is_writable(size_t at) const { return (patch_->function + at) % kBlock != kBlock - 1; }

  bool add_call(size_t load, size_t call, int number_at) {
    Place place{static_cast<uint16_t>(call), kJumpLength, Kind::call, static_cast<uint8_t>(number_at), 0};
    if (!is_writable(call) && read_plain(code_ + load).length >= kJumpLength) {
      place.kind = Kind::before_call;
      place.offset = static_cast<uint16_t>(load);
      place.length = static_cast<uint8_t>(call - load);
    }
    return add(place);
  }

  // False: there are too many places.
  bool find_call(size_t load) {
    const int number_at = calls_.number == kAnyCall ? -1 : loads_number_as(load);
    if (number_at < 0) return true;
    size_t at = load;
    for (Instruction next; at < length_ && (next = read_plain(code_ + at)).length != 0;) at += next.length;
    return code_[at] != kCall || at + kJumpLength > length_ || add_call(load, at, number_at);
  }

  bool find_calls_of_kernel() {
    constexpr uint8_t kSystemCall[] = {0x0f, 0x05};
    for (size_t at = 0; at + sizeof(kSystemCall) <= length_ && !is_done(); ++at) {
      if (!(is(code_ + at, kSystemCall) ? find_system_call(at) : find_call(at))) return false;
    }
    return true;
  }

  bool are_writable() const {
    return std::all_of(patch_->places, patch_->places + patch_->count,
                       [this](const Place& place) { return is_writable(place.offset); });
  }

  // Instructions that come before the place at a function's start: a hook that makes the system call returns to the
  // function's caller, so nothing but the fourth argument's copy may have happened.
  size_t passed_at(size_t at) const {
    constexpr uint8_t kCopy[] = {0x49, 0x89, 0xca}, kCopyInt[] = {0x41, 0x89, 0xca};
    constexpr uint8_t kFrame[] = {0x48, 0x89, 0xe5}, kRoom[] = {0x48, 0x83, 0xec};
    if (is(code_ + at, kEndbr64)) return sizeof(kEndbr64);
    if (is(code_ + at, kCopy) || is(code_ + at, kCopyInt)) return sizeof(kCopy);
    if (calls_.number != kNoCall) return 0;
    const size_t prefix = code_[at] == 0x41 ? 1 : 0;
    if ((code_[at + prefix] & 0xf8) == 0x50) return prefix + 1;  // push
    if (is(code_ + at, kFrame)) return sizeof(kFrame);
    return is(code_ + at, kRoom) ? sizeof(kRoom) + 1 : 0;
  }

  // Whether the instruction reads memory or compares: no patch of another runtime begins so.
  bool is_look(size_t at) const {
    if (code_[at] == 0x64) ++at;  // of %fs
    if ((code_[at] & 0xf0) == 0x40) ++at;
    return code_[at] == 0x8b || code_[at] == 0xf7;
  }

  bool find_start() {
    const bool only_reports = calls_.number == kNoCall;
    size_t at = 0;
    while (at + kLongest < length_ && passed_at(at) != 0) at += passed_at(at);
    if (calls_.number == kAnyCall || (!only_reports && !is_look(at))) return false;
    // The jump of another runtime is taken after the hook.
    const bool is_jump = only_reports && code_[at] == kJump;
    const Instruction found = is_jump ? Instruction{kJumpLength, 1} : read_plain(code_ + at);
    const bool crosses = (patch_->function + at) % kBlock + kJumpLength > kBlock;
    if (found.length < kJumpLength || crosses) return false;
    return add({static_cast<uint16_t>(at), static_cast<uint8_t>(found.length), Kind::start, 0,
                static_cast<uint8_t>(found.relative_at)});
  }

  const uint8_t* const code_;
  const size_t length_;
  const bool is_whole_;
  const Calls calls_;
  Patch* const patch_;
};

}  // namespace

bool find_places(const uint8_t* code, size_t length, bool is_whole, const Calls& calls, Patch* patch) {
  return Search(code, length, is_whole, calls, patch).run();
}

}  // namespace pinrail::patch

#endif
