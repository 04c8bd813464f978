// SPDX-License-Identifier: BSD-3-Clause
// Where functions of C libraries are patched.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "base/patch/island.h"
#include "base/patch/patch.h"
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

TEST(Places, are_none_where_another_runtime_was_first_or_the_number_is_another_or_not_known) {
  const std::vector<uint8_t> codes[] = {
      {0xe9, 1, 2, 3, 4, 0x0f, 0x05, 0xc3},                                               // jmp
      {0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe3, 0x0f, 0x05, 0xc3},           // movabs; jmp *%r11
      {0x68, 1, 2, 3, 4, 0xc3, 0x0f, 0x05, 0xc3},                                         // push; ret
      {0xff, 0x25, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x0f, 0x05, 0xc3},                 // jmp *0(%rip)
      {0xff, 0x24, 0x25, 1, 2, 3, 4, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 1, 0xc3},  // in place of both
      {0xb8, 12, 0, 0, 0, 0x0f, 0x05, 0xc3},                                              // another number
      {0xb8, kMunmap, 0, 0, 0, 0x0f, 0x05, 0x89, 0xf8, 0x0f, 0x05, 0xc3},  // one system call is not recognised
      {0xb8, kMunmap, 0, 0, 0, 0x74, 0x00, 0x0f, 0x05, 0xc3},              // a branch lies between
      // What lies between is relative, and cannot be executed elsewhere.
      {0xb8, kMunmap, 0, 0, 0, 0x48, 0x8b, 0x3d, 0, 0, 0, 0, 0x0f, 0x05, 0xc3},
  };
  for (const auto& code : codes) EXPECT_EQ(places_in(code, kObject, {kMunmap}, true), "") << &code - codes;
}

// What a processor fetches at once is written at once.
TEST(Places, at_the_start_of_a_function_lie_in_one_block_up_to_its_last_byte) {
  const std::vector<uint8_t> code = {0xb8, 1, 0, 0, 0, 0xc3};
  EXPECT_EQ(places_in(code, kObject + 11, {kNoCall}, true), "+0 start");
  EXPECT_EQ(places_in(code, kObject + 12, {kNoCall}, true), "");
}

}  // namespace
}  // namespace pinrail::patch

#else

TEST(Places, are_of_x86_64) { GTEST_SKIP() << "the listings are of x86-64"; }

#endif

// Functions that have a patch of this library already: another copy of it, or a forked child's parent, wrote it. Each
// test patches a function of its own, because nothing is ever un-patched.

#if PINRAIL_CAN_PATCH

// munmap as libc has it: the system call's instruction inside, and the kernel's result outside.
#ifdef __aarch64__
#define MUNMAP_CODE "hint #34\nmov x8, #215\nsvc #0\nret\n"
#define TYPE_FUNCTION "%function"
#else
#define MUNMAP_CODE "mov $11, %eax\nsyscall\nret\n"
#define TYPE_FUNCTION "@function"
#endif
#define MUNMAP_AS(name)                                                                                       \
  __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", " TYPE_FUNCTION "\n" #name ":\n" MUNMAP_CODE \
          ".size " #name ", . - " #name "\n");                                                                \
  extern "C" long name(long, long, long, long, long, long)

MUNMAP_AS(victim_thrice);
MUNMAP_AS(victim_error);
MUNMAP_AS(victim_of_one_that_looks);

namespace pinrail::patch {
namespace {

constexpr long kLength = 4096;

// One copy's patch: it notes that it was called. Some leave the call to the function, if no other copy makes it.
struct Copy {
  int number;
  std::vector<int>* order;
  bool makes_call = true;
  const Record* original = nullptr;
};

bool copy_hook(void* copy_pointer, long number, const long* args, long* result_out) {
  const auto& copy = *static_cast<Copy*>(copy_pointer);
  copy.order->push_back(copy.number);
  if (copy.original != nullptr && call_original_hook(copy.original, number, args, result_out)) return true;
  if (!copy.makes_call) return false;
  *result_out = system_call_hook(number, args[0], args[1], args[2], args[3], args[4], args[5]);
  return true;
}

template <typename Function>
void install(Function function, const Calls& calls, Copy* copy) {
  Patch patch;
  ASSERT_TRUE(prepare(reinterpret_cast<uintptr_t>(function), calls, copy_hook, copy, &patch).ok());
  EXPECT_EQ(patch.original != nullptr, copy->number != 1);
  copy->original = patch.original;
  ASSERT_TRUE(activate(&patch).ok());
  EXPECT_TRUE(is_in_place(patch));
}

long new_page() {
  return reinterpret_cast<long>(mmap(nullptr, kLength, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}
bool is_mapped(long page) {
  unsigned char residence = 0;
  return mincore(reinterpret_cast<void*>(page), kLength, &residence) == 0;
}

TEST(PatchedAgain, each_copys_hook_is_called_and_the_kernel_once) {
  for (const bool makes_call : {true, false}) {  // if none does, the function does
    const auto function = makes_call ? victim_thrice : victim_of_one_that_looks;
    std::vector<int> order;
    Copy copies[] = {{1, &order, makes_call}, {2, &order, makes_call}, {3, &order, makes_call}};
    for (Copy& copy : copies) install(function, {SYS_munmap}, &copy);
    const long page = new_page();
    EXPECT_EQ(function(page, kLength, 0, 0, 0, 0), 0);
    EXPECT_FALSE(is_mapped(page));
    EXPECT_EQ(order, (std::vector<int>{3, 2, 1}));
  }
}

TEST(PatchedAgain, an_error_reaches_the_function_as_the_kernel_gives_it) {
  std::vector<int> order;
  Copy copies[] = {{1, &order}, {2, &order}};
  errno = 0;
  for (Copy& copy : copies) {
    install(victim_error, {SYS_munmap}, &copy);
    EXPECT_EQ(victim_error(1, kLength, 0, 0, 0, 0), -EINVAL) << copy.number;
    EXPECT_EQ(errno, 0) << copy.number;
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1}));
}

TEST(PatchedAgain, any_system_call_keeps_its_number_and_all_arguments) {
  std::vector<int> order;
  Copy copies[] = {{1, &order}, {2, &order}};
  for (Copy& copy : copies) install(syscall, {kAnyCall}, &copy);
  const long page = syscall(SYS_mmap, 0, 2 * kLength, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, -1);
  EXPECT_EQ(syscall(SYS_munmap, page, 2 * kLength), 0);
  EXPECT_EQ(syscall(SYS_getpid), getpid());
  EXPECT_EQ(order, (std::vector<int>{2, 1, 2, 1, 2, 1}));
}

}  // namespace
}  // namespace pinrail::patch

#else

TEST(PatchedAgain, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "code is patched on Linux, x86-64 or 64-bit Arm, without ThreadSanitizer";
}

#endif
