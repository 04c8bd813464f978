// SPDX-License-Identifier: BSD-3-Clause
#include "base/patch/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace pinrail::patch {
namespace {

constexpr uintptr_t kAddress = 0x7f0000001000;

// Each case with both readers: what they know, they agree on.
class Decode : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) disassembler_ = Disassembler::open();
    if (GetParam() && !disassembler_.is_complete()) GTEST_SKIP() << "Zydis cannot be loaded";
  }
  // What is not given is int3.
  Status decode_bytes(const std::vector<uint8_t>& bytes, PatchPoint* entry, uintptr_t address = kAddress,
                      const Signature& signature = {}) const {
    uint8_t code[kMaxDecoded];
    for (size_t i = 0; i < kMaxDecoded; ++i) code[i] = i < bytes.size() ? bytes[i] : 0xcc;
    return decode(code, sizeof(code), address, signature, disassembler_, entry);
  }

  Disassembler disassembler_;
};

INSTANTIATE_TEST_SUITE_P(Readers, Decode, testing::Bool(),
                         [](const auto& reader) { return reader.param ? "zydis" : "small"; });

std::vector<uint8_t> undo_of(const PatchPoint& entry) { return {entry.undo, entry.undo + entry.undo_length}; }

TEST_P(Decode, a_first_instruction_of_five_bytes_is_displaced) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05}, &entry).ok());
  EXPECT_EQ(entry.offset, 0u);
  EXPECT_EQ(entry.length, 5u);
  EXPECT_EQ(entry.foreign, 0u);
  EXPECT_TRUE(undo_of(entry).empty());
}

TEST_P(Decode, endbr64_stays_and_the_jump_comes_behind_it) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05}, &entry).ok());
  EXPECT_EQ(entry.offset, 4u);
  EXPECT_TRUE(undo_of(entry).empty());
}

TEST_P(Decode, a_move_to_r10_may_run_before_the_jump) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0x41, 0x89, 0xca, 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0}, &entry).ok());
  EXPECT_EQ(entry.offset, 3u);
  EXPECT_EQ(entry.length, 7u);
}

TEST_P(Decode, stack_that_was_taken_is_given_back) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0x48, 0x83, 0xec, 0x58, 0x4c, 0x89, 0x44, 0x24, 0x40}, &entry).ok());
  EXPECT_EQ(entry.offset, 4u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x48, 0x8d, 0xa4, 0x24, 0x58, 0, 0, 0}));
}

TEST_P(Decode, pushes_of_what_is_not_changed_are_given_back_as_stack) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0x53, 0x41, 0x54, 0xb8, 1, 0, 0, 0}, &entry).ok());
  EXPECT_EQ(entry.offset, 3u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x48, 0x8d, 0xa4, 0x24, 0x10, 0, 0, 0}));  // lea 16(%rsp), %rsp
}

TEST_P(Decode, arguments_that_were_shifted_for_a_system_call_are_shifted_back) {
  const std::vector<uint8_t> syscall_function = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca,
                                                 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x08};
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes(syscall_function, &entry).ok());
  EXPECT_EQ(entry.offset, 18u);
  EXPECT_EQ(entry.length, 5u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x50,                 // push %rax: the first argument
                                                  0x57,                 // push %rdi
                                                  0x56,                 // push %rsi
                                                  0x41, 0x52,           // push %r10
                                                  0x41, 0x58,           // pop %r8
                                                  0x5a, 0x5e, 0x5f}));  // pop %rdx, %rsi, %rdi
}

TEST_P(Decode, a_displacement_that_must_move_along_is_named) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0x80, 0x3d, 0x21, 0xe8, 0x0d, 0, 0, 0x49}, &entry).ok());
  EXPECT_EQ(entry.length, 7u);
  ASSERT_EQ(entry.moved_count, 1u);
  EXPECT_EQ(entry.moved_at[0], 2u);
}

// The CUDA driver 580.159.04: all of its functions begin like this one, cuMemFree_v2.
TEST_P(Decode, a_function_of_the_cuda_driver_is_patched_behind_its_frame) {
  const std::vector<uint8_t> function = {
      0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08,  // push %rbp, %r12; room for a word
      0x81, 0x3d, 0xbc, 0xa2, 0x8a, 0x05, 0x00, 0xba, 0x1c, 0x32,  // cmpl $0x321cba00, 0x58aa2bc(%rip)
      0x0f, 0x84, 0x96, 0x00, 0x00, 0x00,                          // je
      0xff, 0x15, 0xe8, 0x46, 0x8a, 0x05,                          // call *0x58a46e8(%rip)
      0x41, 0x89, 0xc4, 0x85, 0xc0, 0x74, 0x0f, 0x3d, 0x58, 0x02, 0x00, 0x00, 0x74, 0x08};
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes(function, &entry).ok());
  EXPECT_EQ(entry.offset, 10u);
  EXPECT_EQ(entry.length, 10u);
  ASSERT_EQ(entry.moved_count, 1u);
  EXPECT_EQ(entry.moved_at[0], 12u);
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0xff, 0xb4, 0x24, 0x10, 0, 0, 0,           // push 16(%rsp)
                                                  0x5d,                                      // pop %rbp
                                                  0x48, 0x8d, 0xa4, 0x24, 0x18, 0, 0, 0}));  // lea 24(%rsp), %rsp
}

TEST_P(Decode, a_jump_that_is_there_is_another_runtimes_patch) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0xe9, 0xfb, 0xff, 0xff, 0xff}, &entry).ok());
  EXPECT_EQ(entry.foreign, kAddress);  // five bytes on, five back
  ASSERT_TRUE(decode_bytes({0x41, 0x89, 0xca, 0xe9, 0x10, 0, 0, 0}, &entry).ok());
  EXPECT_EQ(entry.offset, 3u);
  EXPECT_EQ(entry.foreign, kAddress + 3 + 5 + 0x10);
}

TEST_P(Decode, a_far_jump_through_a_register_is_one_too) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe3}, &entry).ok());
  EXPECT_EQ(entry.foreign, 0x0807060504030201u);
  ASSERT_TRUE(decode_bytes({0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xe0}, &entry).ok());
  EXPECT_EQ(entry.foreign, 0x0807060504030201u);
}

TEST_P(Decode, a_move_without_its_jump_is_not) {
  PatchPoint entry;
  EXPECT_FALSE(decode_bytes({0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe4}, &entry).ok());
}

TEST_P(Decode, what_is_unknown_is_refused) {
  const std::vector<std::vector<uint8_t>> unknown = {
      {0xcc},
      {0x0f, 0x05},
      {0x0f, 0x28, 0xc0, 0xb8, 0, 0, 0, 0},              // movaps %xmm0, %xmm0
      {0xeb, 0x10, 0xb8, 0, 0, 0, 0},                    // a short jump
      {0x74, 0x10, 0xb8, 0, 0, 0, 0},                    // a branch
      {0x41, 0x89, 0xca, 0x0f, 0x05},                    // nothing of five bytes
      {0x0f, 0x05, 0xb8, 0, 0, 0, 0},                    // the kernel was asked already
      {0xff, 0x25, 0, 0, 0, 0},                          // jmp *0(%rip): a patch of a kind that is not known
      {0x68, 0, 0, 0, 0, 0xc3},                          // push, ret: another
      {0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe1},  // movabs to %rcx, jmp *%rcx: another
      {0x48, 0x8d, 0x05, 0, 0, 0, 0, 0xff, 0xe0},        // lea to %rax, jmp *%rax: another
      {0x89, 0x07, 0xb8, 0, 0, 0, 0},                    // mov %eax, (%rdi): a store that cannot be rolled back
      {0x31, 0xff, 0xb8, 0, 0, 0, 0},                    // xor %edi, %edi: an argument is lost
      {0x31, 0xdb, 0xb8, 0, 0, 0, 0},                    // xor %ebx, %ebx: a register of the caller's is lost
      {0x48, 0x63, 0xf6, 0xb8, 0, 0, 0, 0},              // movslq %esi, %rsi: half of an argument is lost
      {0x89, 0xf6, 0xb8, 0, 0, 0, 0},                    // mov %esi, %esi: the same
      {0x48, 0x83, 0xc4, 8, 0xb8, 0, 0, 0, 0},           // add $8, %rsp: the caller's stack
      {0x5f, 0xb8, 0, 0, 0, 0},                          // pop %rdi: the same
      // mov %rdi, %rax; xor %edi, %edi; xor %eax, %eax: it was kept, but not long enough.
      {0x48, 0x89, 0xf8, 0x31, 0xff, 0x31, 0xc0, 0xb8, 0, 0, 0, 0},
      // push %rdi; xor %edi, %edi; pop %rax; xor %eax, %eax: the same in the stack.
      {0x57, 0x31, 0xff, 0x58, 0x31, 0xc0, 0xb8, 0, 0, 0, 0},
      // push %rbx; mov %rsi, (%rsp); xor %ebx, %ebx: what was kept is overwritten.
      {0x53, 0x48, 0x89, 0x34, 0x24, 0x31, 0xdb, 0xb8, 0, 0, 0, 0},
  };
  for (size_t i = 0; i < unknown.size(); ++i) {
    PatchPoint entry;
    entry.offset = 77;
    EXPECT_TRUE(decode_bytes(unknown[i], &entry).is(PINRAIL_ERR_NOT_SUPPORTED)) << i;
    EXPECT_EQ(entry.offset, 77u) << "outputs only on success";
  }
}

TEST_P(Decode, an_argument_may_be_kept_elsewhere) {
  PatchPoint entry;
  // mov %rdi, %rax; xor %edi, %edi
  ASSERT_TRUE(decode_bytes({0x48, 0x89, 0xf8, 0x31, 0xff, 0xb8, 0, 0, 0, 0}, &entry).ok());
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x50, 0x5f}));  // push %rax; pop %rdi
  // push %rbp; push %rbx; mov %rdi, %rbx; xor %edi, %edi
  ASSERT_TRUE(decode_bytes({0x55, 0x53, 0x48, 0x89, 0xfb, 0x31, 0xff, 0xb8, 0, 0, 0, 0}, &entry).ok());
  EXPECT_EQ(undo_of(entry), (std::vector<uint8_t>{0x53,                          // push %rbx
                                                  0xff, 0xb4, 0x24, 8, 0, 0, 0,  // push 8(%rsp)
                                                  0x5b, 0x5f,                    // pop %rbx, %rdi
                                                  0x48, 0x8d, 0xa4, 0x24, 0x10, 0, 0, 0}));
}

TEST_P(Decode, an_int_may_be_widened_and_what_is_no_argument_may_be_lost) {
  const std::vector<uint8_t> code = {0x48, 0x63, 0xf6, 0x45, 0x31, 0xc9, 0xb8, 0, 0, 0, 0};
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes(code, &entry, kAddress, {4, 2, -1}).ok());  // the second one is an int, there is no sixth
  EXPECT_TRUE(undo_of(entry).empty());
  EXPECT_FALSE(decode_bytes(code, &entry, kAddress, {4, 1, -1}).ok());
  EXPECT_FALSE(decode_bytes(code, &entry, kAddress, {6, 2, -1}).ok());
}

TEST_P(Decode, an_argument_that_is_read_back_from_the_stack_is_known) {
  PatchPoint entry;
  // push %rdi; mov (%rsp), %rdi; mov $0, %eax
  EXPECT_TRUE(decode_bytes({0x57, 0x48, 0x8b, 0x3c, 0x24, 0xb8, 0, 0, 0, 0}, &entry).ok());
  // push %rdi; push %rsi; mov 8(%rsp), %edi; mov $0, %eax
  ASSERT_TRUE(decode_bytes({0x57, 0x56, 0x8b, 0x7c, 0x24, 0x08, 0xb8, 0, 0, 0, 0}, &entry, kAddress, {4, 1, -1}).ok());
  EXPECT_EQ(entry.offset, 6u);
  // push %rsi; mov (%rsp), %rdi: another argument's value, of which the first one is lost
  EXPECT_FALSE(decode_bytes({0x56, 0x48, 0x8b, 0x3c, 0x24, 0xb8, 0, 0, 0, 0}, &entry).ok());
}

TEST_P(Decode, an_argument_that_is_overwritten_on_the_stack_in_part_is_lost) {
  PatchPoint entry;
  // push %rdi; push %rsi; mov %eax, (%rsp); mov (%rsp), %rsi; mov $0, %eax
  EXPECT_FALSE(decode_bytes({0x57, 0x56, 0x89, 0x04, 0x24, 0x48, 0x8b, 0x34, 0x24, 0xb8, 0, 0, 0, 0}, &entry, kAddress,
                            {2, 0, -1})
                   .ok());
}

TEST_P(Decode, a_register_that_holds_no_argument_may_be_computed) {
  PatchPoint entry;
  // add $1, %rax; mov $0, %eax
  ASSERT_TRUE(decode_bytes({0x48, 0x83, 0xc0, 0x01, 0xb8, 0, 0, 0, 0}, &entry).ok());
  EXPECT_TRUE(undo_of(entry).empty());
  // add $1, %rdi: the argument is lost
  EXPECT_FALSE(decode_bytes({0x48, 0x83, 0xc7, 0x01, 0xb8, 0, 0, 0, 0}, &entry).ok());
}

TEST_P(Decode, a_call_may_be_displaced) {
  PatchPoint entry;
  ASSERT_TRUE(decode_bytes({0x48, 0x83, 0xec, 0x08, 0xe8, 0, 0, 0, 1}, &entry).ok());
  EXPECT_EQ(entry.offset, 4u);
  ASSERT_EQ(entry.moved_count, 1u);
  EXPECT_EQ(entry.moved_at[0], 5u);
}

// push %rbx; mov %rdi, %rbx; call, which does not fit; mov $11, %eax; mov %rbx, %rdi; syscall
TEST_P(Decode, a_call_is_passed_only_if_the_functions_own_system_call_comes_after_it) {
  const std::vector<uint8_t> code = {0x53, 0x48, 0x89, 0xfb, 0xe8, 0,    0,    0,    1,   0xb8,
                                     0x0b, 0,    0,    0,    0x48, 0x89, 0xdf, 0x0f, 0x05};
  PatchPoint entry;
  const uintptr_t across = kAddress + 8;  // the call lies at 12 of 16
  ASSERT_TRUE(decode_bytes(code, &entry, across, {1, 0, 11}).ok());
  EXPECT_EQ(entry.offset, 9u);
  EXPECT_FALSE(decode_bytes(code, &entry, across, {1, 0, 28}).ok());
  EXPECT_FALSE(decode_bytes(code, &entry, across, {1, 0, -1}).ok());
  EXPECT_FALSE(decode_bytes(code, &entry, across, {2, 0, 11}).ok()) << "the second one went with the call";
}

// push %rdi; push %rsp; pop %rsi; call, which does not fit; mov $11, %eax; syscall
TEST_P(Decode, a_call_that_gets_an_address_of_the_stack_may_change_what_lies_there) {
  std::vector<uint8_t> code = {0x57, 0x54, 0x5e, 0xe8, 0, 0, 0, 1, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05};
  PatchPoint entry;
  const uintptr_t across = kAddress + 9;
  EXPECT_FALSE(decode_bytes(code, &entry, across, {1, 0, 11}).ok());
  code[1] = code[2] = 0x90;  // nop instead of the address
  EXPECT_TRUE(decode_bytes(code, &entry, across, {1, 0, 11}).ok());
}

// push %rdi; pop %rax; call and mov -8(%rsp), %rdi, which do not fit, with nops between; mov $11, %eax; syscall
TEST_P(Decode, what_lies_below_the_stack_goes_with_a_call) {
  std::vector<uint8_t> code = {0x57, 0x58, 0xe8, 0, 0, 0, 1};
  code.insert(code.end(), 11, 0x90);
  for (const int byte : {0x48, 0x8b, 0x7c, 0x24, 0xf8, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05})
    code.push_back(static_cast<uint8_t>(byte));
  PatchPoint entry;
  EXPECT_FALSE(decode_bytes(code, &entry, kAddress + 10, {1, 0, 11}).ok());
  std::fill(code.begin() + 2, code.begin() + 7, uint8_t{0x90});  // without the call
  EXPECT_TRUE(decode_bytes(code, &entry, kAddress + 10, {1, 0, 11}).ok());
  EXPECT_EQ(entry.offset, 23u);
}

TEST_P(Decode, where_a_branch_leads_no_jump_is_laid) {
  PatchPoint entry;
  // mov %rcx, %r10; mov $1, %eax; test %eax, %eax; jne -n
  std::vector<uint8_t> code = {0x49, 0x89, 0xca, 0xb8, 1, 0, 0, 0, 0x85, 0xc0, 0x75, 0};
  for (const uint8_t into : {uint8_t{1}, uint8_t{3}, uint8_t{5}, uint8_t{7}}) {
    code[11] = static_cast<uint8_t>(into - 12);
    EXPECT_FALSE(decode_bytes(code, &entry).ok()) << int{into};
  }
  for (const uint8_t past : {uint8_t{0}, uint8_t{8}, uint8_t{10}, uint8_t{30}}) {
    code[11] = static_cast<uint8_t>(past - 12);
    EXPECT_TRUE(decode_bytes(code, &entry).ok()) << int{past};
  }
}

TEST_P(Decode, a_jump_that_one_store_cannot_write_moves_on_or_is_refused) {
  PatchPoint entry;
  // At 12 of 16 five bytes do not fit any more; the next instruction begins a block of its own.
  ASSERT_TRUE(decode_bytes({0xb8, 0, 0, 0, 0, 0xb8, 1, 0, 0, 0}, &entry, kAddress + 12).ok());
  EXPECT_EQ(entry.offset, 5u);
  EXPECT_FALSE(decode_bytes({0xb8, 0, 0, 0, 0, 0x0f, 0x05}, &entry, kAddress + 12).ok());
  ASSERT_TRUE(decode_bytes({0xb8, 0, 0, 0, 0}, &entry, kAddress + 11).ok());
}

TEST(DecodeBlocks, blocks_hold_a_jump_or_do_not) {
  EXPECT_TRUE(fits_block(kAddress + 3, 8));
  EXPECT_FALSE(fits_block(kAddress + 4, 8));
  EXPECT_TRUE(fits_block(kAddress + 11, 16));
  EXPECT_FALSE(fits_block(kAddress + 12, 16));
}

}  // namespace
}  // namespace pinrail::patch
