// SPDX-License-Identifier: BSD-3-Clause
// patched_call.h - calls a patched function and tells what its hook and its caller got.
#ifndef PINRAIL_TEST_UNIT_PATCH_PATCHED_CALL_H
#define PINRAIL_TEST_UNIT_PATCH_PATCHED_CALL_H

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "base/patch/patch.h"
#include "base/patch/system_call.h"

extern "C" {
// Calls a function with six arguments in registers and one on the stack, and tells what it left of rbx, rbp, r12 to
// r15.
long pinrail_test_call(uintptr_t function, const long* args, long* kept_out);
// Loses all that a function may lose but r11, by which it finds its caller's part of the stack: also the words there
// whose addresses it gets as arguments, and what lies below the stack. It may be copied elsewhere.
void pinrail_test_lose();
extern const char pinrail_test_lose_end[];
}

namespace pinrail::test {

constexpr long kKept[] = {0x1b, 0x2b, 0x3b, 0x4b, 0x5b, 0x6b};  // what the caller has in those registers
constexpr long kHookResult = -7;

struct Seen {
  int calls = 0;
  long args[6] = {};
  long on_stack = 0;
};

inline long record_hook(void* seen_pointer, const long* args) {
  auto* const seen = static_cast<Seen*>(seen_pointer);
  ++seen->calls;
  std::memcpy(seen->args, args, sizeof(seen->args));
  seen->on_stack = args[patch::kStackArgs];
  return kHookResult;
}

// given: six arguments in registers and one on the stack.
inline void expect_arguments(const Seen& seen, const long* given, const patch::Signature& signature) {
  for (size_t i = 0; i < signature.arguments; ++i) {
    const bool is_int = (signature.ints >> i & 1) != 0;
    const long seen_part = is_int ? static_cast<int>(seen.args[i]) : seen.args[i];
    EXPECT_EQ(seen_part, is_int ? static_cast<int>(given[i]) : given[i]) << i;
  }
  EXPECT_EQ(seen.on_stack, given[6]);
}

// Calls the function, whose patch's hook notes in `seen` what it gets, and checks what the hook and the caller got.
inline void expect_call_is_hooked(uintptr_t function, const long* given, const patch::Signature& signature,
                                  const Seen& seen) {
  const int calls = seen.calls;
  long kept[6] = {};
  EXPECT_EQ(pinrail_test_call(function, given, kept), kHookResult);
  EXPECT_EQ(seen.calls, calls + 1);
  expect_arguments(seen, given, signature);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(kept[i], kKept[i]) << i;
}

}  // namespace pinrail::test

#endif
