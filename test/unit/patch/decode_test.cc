// SPDX-License-Identifier: BSD-3-Clause
#include "base/patch/decode.h"

#include <gtest/gtest.h>

#include <vector>

namespace pinrail::patch {
namespace {

constexpr uintptr_t kAddress = 0x7f0000001000;

// What is not given is int3.
Status decode_bytes(const std::vector<uint8_t>& bytes, Entry* entry, uintptr_t address = kAddress) {
  uint8_t code[kMostDecoded];
  for (size_t i = 0; i < kMostDecoded; ++i) code[i] = i < bytes.size() ? bytes[i] : 0xcc;
  return decode(code, address, entry);
}

std::vector<uint8_t> undo_of(const Entry& entry) { return {entry.undo, entry.undo + entry.undo_length}; }

TEST(Decode, a_first_instruction_of_five_bytes_is_displaced) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05}, &entry).ok());
  EXPECT_EQ(entry.offset, 0u);
  EXPECT_EQ(entry.length, 5u);
  EXPECT_EQ(entry.foreign, 0u);
  EXPECT_TRUE(undo_of(entry).empty());
}

TEST(Decode, endbr64_stays_and_the_jump_comes_behind_it) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05}, &entry).ok());
  EXPECT_EQ(entry.offset, 4u);
  EXPECT_TRUE(undo_of(entry).empty());
}

TEST(Decode, a_move_to_r10_may_run_before_the_jump) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0x41, 0x89, 0xca, 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0}, &entry).ok());
  EXPECT_EQ(entry.offset, 3u);
  EXPECT_EQ(entry.length, 7u);
}

TEST(Decode, stack_that_was_taken_is_given_back) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0x48, 0x83, 0xec, 0x58, 0x4c, 0x89, 0x44, 0x24, 0x40}, &entry).ok());
  EXPECT_EQ(entry.offset, 4u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x48, 0x83, 0xc4, 0x58}));
}

TEST(Decode, pushes_are_undone_in_reverse) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0x53, 0x41, 0x54, 0xb8, 1, 0, 0, 0}, &entry).ok());
  EXPECT_EQ(entry.offset, 3u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x41, 0x5c, 0x5b}));  // pop %r12; pop %rbx
}

TEST(Decode, arguments_that_were_shifted_for_a_system_call_are_shifted_back) {
  const std::vector<uint8_t> syscall_function = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca,
                                                 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x08};
  Entry entry;
  ASSERT_TRUE(decode_bytes(syscall_function, &entry).ok());
  EXPECT_EQ(entry.offset, 18u);
  EXPECT_EQ(entry.length, 5u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x4d, 0x89, 0xc1,     // mov %r8, %r9
                                                  0x4d, 0x89, 0xd0,     // mov %r10, %r8
                                                  0x48, 0x89, 0xd1,     // mov %rdx, %rcx
                                                  0x48, 0x89, 0xf2,     // mov %rsi, %rdx
                                                  0x48, 0x89, 0xfe,     // mov %rdi, %rsi
                                                  0x48, 0x89, 0xc7}));  // mov %rax, %rdi
}

TEST(Decode, a_displacement_that_must_move_along_is_named) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0x80, 0x3d, 0x21, 0xe8, 0x0d, 0, 0, 0x49}, &entry).ok());
  EXPECT_EQ(entry.length, 7u);
  EXPECT_EQ(entry.relative_at, 2u);
}

TEST(Decode, a_jump_that_is_there_is_another_runtimes_patch) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0xe9, 0xfb, 0xff, 0xff, 0xff}, &entry).ok());
  EXPECT_EQ(entry.foreign, kAddress);  // five bytes on, five back
  ASSERT_TRUE(decode_bytes({0x41, 0x89, 0xca, 0xe9, 0x10, 0, 0, 0}, &entry).ok());
  EXPECT_EQ(entry.offset, 3u);
  EXPECT_EQ(entry.foreign, kAddress + 3 + 5 + 0x10);
}

TEST(Decode, a_far_jump_through_a_register_is_one_too) {
  Entry entry;
  ASSERT_TRUE(decode_bytes({0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe3}, &entry).ok());
  EXPECT_EQ(entry.foreign, 0x0807060504030201u);
  ASSERT_TRUE(decode_bytes({0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xe0}, &entry).ok());
  EXPECT_EQ(entry.foreign, 0x0807060504030201u);
}

TEST(Decode, a_move_without_its_jump_is_not) {
  Entry entry;
  EXPECT_FALSE(decode_bytes({0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe4}, &entry).ok());
}

TEST(Decode, what_is_unknown_is_refused) {
  const std::vector<std::vector<uint8_t>> unknown = {
      {0xcc},
      {0x0f, 0x05},
      {0x48, 0x89, 0xc8, 0xb8, 0, 0, 0, 0},  // mov %rcx, %rax: harmless, but not known to be
      {0xeb, 0x10, 0xb8, 0, 0, 0, 0},        // a short jump
      {0x74, 0x10, 0xb8, 0, 0, 0, 0},        // a branch
      {0x41, 0x89, 0xca, 0x0f, 0x05},        // nothing of five bytes
  };
  for (const auto& bytes : unknown) {
    Entry entry;
    entry.offset = 77;
    EXPECT_TRUE(decode_bytes(bytes, &entry).is(PINRAIL_ERR_NOT_SUPPORTED));
    EXPECT_EQ(entry.offset, 77u) << "outputs only on success";
  }
}

TEST(Decode, a_jump_that_one_store_cannot_write_moves_on_or_is_refused) {
  Entry entry;
  // At 12 of 16 five bytes do not fit any more; the next instruction begins a block of its own.
  ASSERT_TRUE(decode_bytes({0xb8, 0, 0, 0, 0, 0xb8, 1, 0, 0, 0}, &entry, kAddress + 12).ok());
  EXPECT_EQ(entry.offset, 5u);
  EXPECT_FALSE(decode_bytes({0xb8, 0, 0, 0, 0, 0x0f, 0x05}, &entry, kAddress + 12).ok());
  ASSERT_TRUE(decode_bytes({0xb8, 0, 0, 0, 0}, &entry, kAddress + 11).ok());
}

TEST(Decode, blocks_hold_a_jump_or_do_not) {
  EXPECT_TRUE(fits_block(kAddress + 3, 8));
  EXPECT_FALSE(fits_block(kAddress + 4, 8));
  EXPECT_TRUE(fits_block(kAddress + 11, 16));
  EXPECT_FALSE(fits_block(kAddress + 12, 16));
}

}  // namespace
}  // namespace pinrail::patch
