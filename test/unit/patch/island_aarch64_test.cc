// SPDX-License-Identifier: BSD-3-Clause
// Functions of 64-bit Arm that have a patch of this library already: another copy of it, or a forked child's parent,
// wrote it. Each test patches a function of its own, because nothing is ever un-patched.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/patch/patch.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__aarch64__)

// Functions as libc has them: the system call's instruction inside, and the kernel's result or -1 outside.
#define KERNEL_RESULT_OF(name, number)                                                                               \
  __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", %function\n" #name ":\nhint #34\nmov x8, #" #number \
          "\nsvc #0\nret\n.size " #name ", . - " #name "\n");                                                        \
  extern "C" long name(long, long, long, long, long, long)

KERNEL_RESULT_OF(victim_once, 215);  // munmap
KERNEL_RESULT_OF(victim_thrice, 215);
KERNEL_RESULT_OF(victim_error, 215);
// No system call, but a branch to code that is no island.
__asm__(
    ".text\n.p2align 4\n.globl victim_branch\n.type victim_branch, %function\nvictim_branch:\nb 1f\nnop\n1:\n"
    "stp x29, x30, [sp, #-32]!\nldp x29, x30, [sp], #32\nret\n.size victim_branch, . - victim_branch\n");
extern "C" long victim_branch(long);

namespace pinrail::patch {
namespace {

constexpr long kLength = 4096;

// One copy's patch: it notes that it was called, and calls the patch before it, or the kernel.
struct Copy {
  int number;
  std::vector<int>* order;
  long system_call;
  uintptr_t original = 0;
};

long as_libc(long result) {
  if (!is_error_hook(result)) return result;
  errno = static_cast<int>(-result);
  return -1;
}

long copy_hook(void* copy_pointer, const long* args) {
  const auto& copy = *static_cast<Copy*>(copy_pointer);
  copy.order->push_back(copy.number);
  if (copy.original != 0) return call_original_hook(copy.original, args);
  return as_libc(system_call_hook(copy.system_call, args[0], args[1], args[2], args[3], args[4], args[5]));
}

// syscall()'s: the number comes first, and the last argument from behind.
long copy_syscall_hook(void* copy_pointer, const long* args) {
  const auto& copy = *static_cast<Copy*>(copy_pointer);
  const long given[6] = {args[1], args[2], args[3], args[4], args[5], args[kStackArgs]};
  copy.order->push_back(copy.number);
  if (copy.original != 0) return call_original_syscall_hook(copy.original, args[0], given);
  return as_libc(system_call_hook(args[0], given[0], given[1], given[2], given[3], given[4], given[5]));
}

template <typename Function>
void install(Function function, int system_call, Hook hook, Copy* copy) {
  Signature signature;
  signature.system_call = system_call;
  Patch patch;
  ASSERT_TRUE(prepare(reinterpret_cast<uintptr_t>(function), signature, Disassembler(), hook, copy, &patch).ok());
  EXPECT_EQ(patch.is_chained(), copy->number != 1);
  copy->original = patch.island.original;
  ASSERT_TRUE(activate(&patch).ok());
  EXPECT_TRUE(is_in_place(patch));
}

TEST(PatchedAgain, each_copys_hook_is_called_and_the_kernel_once) {
  std::vector<int> order;
  Copy copies[] = {{1, &order, SYS_munmap}, {2, &order, SYS_munmap}, {3, &order, SYS_munmap}};
  for (Copy& copy : copies) install(victim_thrice, SYS_munmap, copy_hook, &copy);
  void* const page = mmap(nullptr, kLength, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(victim_thrice(reinterpret_cast<long>(page), kLength, 0, 0, 0, 0), 0);
  EXPECT_EQ(order, (std::vector<int>{3, 2, 1}));
}

TEST(PatchedAgain, an_error_reaches_the_function_as_the_kernel_gives_it) {
  std::vector<int> order;
  Copy copies[] = {{1, &order, SYS_munmap}, {2, &order, SYS_munmap}};
  errno = 0;
  for (Copy& copy : copies) {
    install(victim_error, SYS_munmap, copy_hook, &copy);
    EXPECT_EQ(victim_error(1, kLength, 0, 0, 0, 0), -EINVAL) << copy.number;
    EXPECT_EQ(errno, 0) << copy.number;
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1}));
}

TEST(PatchedAgain, any_system_call_keeps_its_number_and_all_arguments) {
  std::vector<int> order;
  Copy copies[] = {{1, &order, -1}, {2, &order, -1}};
  // libc's own, because only of exported functions more than the first instructions are examined.
  for (Copy& copy : copies) install(syscall, kAnyCall, copy_syscall_hook, &copy);
  const long page = syscall(SYS_mmap, 0, 2 * kLength, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, -1);
  EXPECT_EQ(syscall(SYS_munmap, page, 2 * kLength), 0);
  EXPECT_EQ(syscall(SYS_getpid), getpid());
  EXPECT_EQ(order, (std::vector<int>{2, 1, 2, 1, 2, 1}));
}

TEST(PatchedAgain, a_branch_to_other_code_is_no_patch_of_ours) {
  Patch patch;
  Signature signature;
  signature.system_call = SYS_munmap;
  Copy copy{1, nullptr, SYS_munmap};
  EXPECT_EQ(
      prepare(reinterpret_cast<uintptr_t>(victim_branch), signature, Disassembler(), copy_hook, &copy, &patch).code(),
      PINRAIL_ERR_NOT_SUPPORTED);
}

// Another runtime's function, and a page of code that begins with a far jump to it.
long theirs(long a, long, long, long, long, long f) {
  errno = EAGAIN;
  return a + f;
}

using Six = long (*)(long, long, long, long, long, long);

Six code_of(std::vector<uint32_t> words) {
  void* const page = mmap(nullptr, kLength, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memcpy(page, words.data(), words.size() * sizeof(words[0]));
  __builtin___clear_cache(static_cast<char*>(page), static_cast<char*>(page) + kLength);
  return reinterpret_cast<Six>(page);
}

std::vector<uint32_t> by_load(uint64_t target) {  // ldr x16, of what is behind br x16
  return {0x58000050, 0xd61f0200, static_cast<uint32_t>(target), static_cast<uint32_t>(target >> 32)};
}
std::vector<uint32_t> by_moves(uint64_t target) {  // movz, movk, movk x15; br x15
  const auto part = [&](unsigned i) { return static_cast<uint32_t>(target >> 16 * i & 0xffff) << 5 | i << 21 | 15; };
  return {0xd2800000 | part(0), 0xf2800000 | part(1), 0xf2800000 | part(2), 0xd61f01e0};
}

TEST(PatchedAgain, a_far_jump_of_another_runtime_is_called_on) {
  const auto target = reinterpret_cast<uint64_t>(&theirs);
  for (const auto& words : {by_load(target), by_moves(target)}) {
    const Six function = code_of(words);
    ASSERT_EQ(function(30, 0, 0, 0, 0, 12), 42);
    std::vector<int> order;
    Copy copies[] = {{0, &order, SYS_munmap}, {2, &order, SYS_munmap}};
    for (Copy& copy : copies) install(function, SYS_munmap, copy_hook, &copy);
    errno = 0;
    EXPECT_EQ(function(30, 0, 0, 0, 0, 12), 42);
    EXPECT_EQ(errno, EAGAIN) << "the function's own";
    EXPECT_EQ(order, (std::vector<int>{2, 0}));
  }
}

TEST(PatchedAgain, code_that_is_almost_a_far_jump_is_none) {
  const auto target = reinterpret_cast<uint64_t>(&theirs);
  std::vector<std::vector<uint32_t>> wrong = {by_load(target), by_moves(target), by_moves(target)};
  wrong[0][1] = 0xd61f0220;   // br of another register
  wrong[1][3] = 0xd63f01e0;   // blr
  wrong[2][0] |= 0x20000000;  // movk first
  for (const auto& words : wrong) {
    Patch patch;
    Signature signature;
    signature.system_call = SYS_munmap;
    const auto function = reinterpret_cast<uintptr_t>(code_of(words));
    EXPECT_TRUE(prepare(function, signature, Disassembler(), copy_hook, nullptr, &patch).is(PINRAIL_ERR_NOT_SUPPORTED));
  }
}

TEST(PatchedAgain, a_patch_alone_is_not_chained) {
  std::vector<int> order;
  Copy copy{1, &order, SYS_munmap};
  install(victim_once, SYS_munmap, copy_hook, &copy);
  EXPECT_EQ(victim_once(1, kLength, 0, 0, 0, 0), -EINVAL);
  EXPECT_EQ(order, std::vector<int>{1});
}

}  // namespace
}  // namespace pinrail::patch

#endif
