// SPDX-License-Identifier: BSD-3-Clause
// Where functions of C libraries are patched.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/patch/island.h"
#include "base/patch/system_call.h"
#include "test/unit/patch/libc_functions.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::patch {
namespace {

std::vector<uint8_t> bytes_of(const char* text) {
  std::vector<uint8_t> bytes;
  for (unsigned byte = 0; std::sscanf(text, "%2x", &byte) == 1; text += 2) bytes.push_back(static_cast<uint8_t>(byte));
  return bytes;
}

std::string places_in(std::vector<uint8_t> code, uintptr_t address, const Calls& calls, bool is_whole) {
  constexpr const char* kKinds[] = {"system_call", "call", "before_call", "start"};
  Patch patch;
  patch.function = address;
  const size_t length = code.size();
  code.resize(length + 16);
  if (!find_places(code.data(), length, is_whole, calls, &patch)) return "";
  std::string places;
  for (size_t i = 0; i < patch.count; ++i) {
    const Place& place = patch.places[i];
    places += (i == 0 ? "+" : " +") + std::to_string(place.offset) + " " + kKinds[static_cast<size_t>(place.kind)];
  }
  return places;
}

constexpr uintptr_t kObject = 0x10000;

TEST(Places, are_found_in_c_libraries) {
  for (const test::LibcFunction& function : test::kLibcFunctions) {
    EXPECT_EQ(places_in(bytes_of(function.bytes), kObject + function.in_page, function.calls, function.is_whole),
              function.places)
        << function.libc << " " << function.name;
  }
}

// However the code ends, nothing behind it is read, and no place lies behind it.
TEST(Places, of_code_that_is_cut_off_lie_in_it) {
  for (const test::LibcFunction& function : test::kLibcFunctions) {
    const std::vector<uint8_t> whole = bytes_of(function.bytes);
    for (size_t length = 0; length < whole.size(); ++length) {
      Patch patch;
      patch.function = kObject + function.in_page;
      std::vector<uint8_t> code(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
      code.resize(length + 16);
      if (!find_places(code.data(), length, function.is_whole, function.calls, &patch)) continue;
      for (size_t i = 0; i < patch.count; ++i) EXPECT_LE(patch.places[i].offset + kJumpLength, length);
    }
  }
}

constexpr int kMunmap = 11;

TEST(Places, are_none_where_another_runtime_was_there_first) {
  const std::vector<std::vector<uint8_t>> patched = {
      {0xe9, 1, 2, 3, 4, 0x0f, 0x05, 0xc3},                                              // jmp
      {0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe3, 0x0f, 0x05, 0xc3},          // movabs; jmp *%r11
      {0x68, 1, 2, 3, 4, 0xc3, 0x0f, 0x05, 0xc3},                                        // push; ret
      {0xff, 0x25, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x0f, 0x05, 0xc3},                // jmp *0(%rip)
      {0xff, 0x24, 0x25, 1, 2, 3, 4, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 1, 0xc3}  // in place of both
  };
  for (const auto& code : patched) EXPECT_EQ(places_in(code, kObject, {kMunmap}, true), "");
}

TEST(Places, are_none_where_the_number_is_another_one_or_not_known) {
  const std::vector<uint8_t> other = {0xb8, 12, 0, 0, 0, 0x0f, 0x05, 0xc3};
  EXPECT_EQ(places_in(other, kObject, {kMunmap}, true), "");
  const std::vector<uint8_t> unknown = {0xb8, kMunmap, 0, 0, 0, 0x0f, 0x05, 0x89, 0xf8, 0x0f, 0x05, 0xc3};
  EXPECT_EQ(places_in(unknown, kObject, {kMunmap}, true), "") << "one of its system calls is not recognised";
  const std::vector<uint8_t> branch = {0xb8, kMunmap, 0, 0, 0, 0x74, 0x00, 0x0f, 0x05, 0xc3};
  EXPECT_EQ(places_in(branch, kObject, {kMunmap}, true), "") << "a branch lies between";
  const std::vector<uint8_t> relative = {0xb8, kMunmap, 0, 0, 0, 0x48, 0x8b, 0x3d, 0, 0, 0, 0, 0x0f, 0x05, 0xc3};
  EXPECT_EQ(places_in(relative, kObject, {kMunmap}, true), "") << "what lies between cannot be executed elsewhere";
}

}  // namespace
}  // namespace pinrail::patch

#else

TEST(Places, are_of_x86_64) { GTEST_SKIP() << "the listings are of x86-64"; }

#endif
