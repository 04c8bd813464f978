// SPDX-License-Identifier: BSD-3-Clause
// Patches in functions like those of C libraries on x86-64. Each test patches functions of its own, because nothing is
// ever un-patched.
#include "base/patch/patch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/patch/island.h"
#include "base/patch/maps.h"
#include "base/patch/system_call.h"
#include "test/support/threads.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

#define FUNCTION(name, code)                                                                                  \
  __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" code ".size " #name \
          ", . - " #name "\n");                                                                               \
  extern "C" long name(long, long, long, long, long, long)

extern "C" long pinrail_test_called(long a, long b, long c, long d, long e, long f, long g, long h);

// getppid, whose arguments do not matter.
#define MAKE_CALL "mov $110, %eax\nsyscall\n"
FUNCTION(victim_changed, MAKE_CALL "ret\n");
FUNCTION(victim_first, MAKE_CALL "ret\n");
FUNCTION(victim_second, MAKE_CALL "ret\n");
FUNCTION(victim_third, MAKE_CALL "ret\n");
FUNCTION(victim_again, MAKE_CALL "ret\n");
FUNCTION(victim_other_number, "mov $110, %eax\nmov $39, %eax\nsyscall\nret\n");
FUNCTION(victim_between, "mov $110, %eax\nmov %rdi, %rsi\nmov $7, %edi\nsyscall\nret\n");
FUNCTION(victim_unknown, "mov $110, %eax\njmp 1f\n1: syscall\nret\n");
FUNCTION(victim_unwound, ".cfi_startproc\nsub $24, %rsp\n.cfi_adjust_cfa_offset 24\n" MAKE_CALL
                         "add $24, %rsp\n.cfi_adjust_cfa_offset -24\nret\n.cfi_endproc\n");
// As in glibc from 2.41 on, in glibc 2.44, and in musl.
FUNCTION(victim_calls_last, "sub $16, %rsp\npush $110\nxor %r8d, %r8d\ncall pinrail_test_called\nadd $24, %rsp\nret\n");
FUNCTION(victim_calls_second,
         "sub $8, %rsp\nmov %rdi, %rdx\nmov %rsi, %rcx\nmov $110, %esi\npush $8\npush $7\n"
         "call pinrail_test_called\nadd $24, %rsp\nret\n");
FUNCTION(victim_calls_first,
         "sub $16, %rsp\nmov %rdi, %rsi\npush $7\nmov $110, %edi\ncall pinrail_test_called\n"
         "add $24, %rsp\nret\n");
// As mmap in glibc where no jump can be written in front of the system call.
FUNCTION(
    victim_start,
    "endbr64\ntest $0xfff, %r9d\njne 1f\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\n"
    "nop\nnop\nnop\n" MAKE_CALL "ret\n1: mov $-1, %rax\nret\n");
// As all functions of the CUDA driver 580.159.04.
FUNCTION(victim_of_driver,
         "push %rbp\nmov %rsp, %rbp\npush %r12\nsub $8, %rsp\ncmpl $0x321cba00, victim_word(%rip)\nje 1f\n"
         "lea (%rdi,%rsi), %rax\njmp 2f\n1: lea 1(%rdi,%rsi), %rax\n2: add $8, %rsp\npop %r12\npop %rbp\nret\n"
         ".data\n.p2align 2\nvictim_word: .long 0x321cba00\n.text\n");
// Loads what a system call must not change, makes one, and returns the number of registers and words that changed.
#define EACH_XMM(what)                                                                                                \
  what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11) what(12) what(13) \
      what(14) what(15)
#define LOAD_XMM(n) "mov $" #n "1, %eax\nmovd %eax, %xmm" #n "\n"
#define LOOK_XMM(n) "movd %xmm" #n ", %ecx\ncmp $" #n "1, %ecx\nje 1f\ninc %rax\n1:\n"
#define LOOK(reg, value) "cmp $" #value ", %" #reg "\nje 1f\ninc %rax\n1:\n"
FUNCTION(victim_registers,
         "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n" EACH_XMM(LOAD_XMM)
         "movq $1, -8(%rsp)\nmovq $16, -128(%rsp)\n"
         "mov $2, %ebx\nmov $3, %ebp\nmov $4, %r12d\nmov $5, %r13d\nmov $6, %r14d\nmov $7, %r15d\n"
         "mov $8, %edi\nmov $9, %esi\nmov $10, %edx\nmov $11, %r10d\nmov $12, %r8d\nmov $13, %r9d\n" MAKE_CALL
         "xor %eax, %eax\ncmpq $1, -8(%rsp)\nje 1f\ninc %rax\n1: cmpq $16, -128(%rsp)\nje 1f\ninc %rax\n1:\n"
         LOOK(rbx, 2) LOOK(rbp, 3) LOOK(r12, 4) LOOK(r13, 5) LOOK(r14, 6) LOOK(r15, 7) LOOK(rdi, 8) LOOK(rsi, 9)
         LOOK(rdx, 10) LOOK(r10, 11) LOOK(r8, 12) LOOK(r9, 13) EACH_XMM(LOOK_XMM)
         "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n");

namespace pinrail::patch {
namespace {

constexpr Calls kParent{SYS_getppid};

struct Seen {
  bool makes_call = true;
  long result = 42;
  int calls = 0;
  long number = 0;
  long args[6] = {};
};

std::vector<uintptr_t>* unwound = nullptr;

__attribute__((noinline)) void unwind(std::vector<uintptr_t>* frames) {
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* into) {
        static_cast<std::vector<uintptr_t>*>(into)->push_back(_Unwind_GetIP(context));
        return _URC_NO_REASON;
      },
      frames);
}

bool record_hook(void* seen_pointer, long number, const long* args, long* result_out) {
  auto* const seen = static_cast<Seen*>(seen_pointer);
  ++seen->calls;
  seen->number = number;
  std::memcpy(seen->args, args, sizeof(seen->args));
  if (unwound != nullptr) unwind(unwound);
  // What a hook may change like any function.
  __asm__ volatile("pxor %%xmm0, %%xmm0\n pxor %%xmm7, %%xmm7\n pxor %%xmm15, %%xmm15\n mov $-1, %%r10" ::
                       : "xmm0", "xmm7", "xmm15", "r10");
  *result_out = seen->result;
  return seen->makes_call;
}

template <typename Function>
uintptr_t address_of(Function function) {
  return reinterpret_cast<uintptr_t>(function);
}

template <typename Function>
Patch patched(Function function, const Calls& calls, Seen* seen) {
  Patch patch;
  EXPECT_TRUE(prepare(address_of(function), calls, record_hook, seen, &patch).ok());
  if (patch.count == 0) return patch;
  EXPECT_TRUE(activate(&patch).ok());
  EXPECT_TRUE(is_in_place(patch));
  return patch;
}

void expect_args(const Seen& seen, const std::vector<long>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(seen.args[i], expected[i]) << i;
}

// What a function that is called in place of the system call got.
struct Called {
  int calls = 0;
  long args[8] = {};
} called;

TEST(Patch, nothing_but_the_result_changes) {
  Seen seen;
  patched(victim_registers, kParent, &seen);
  EXPECT_EQ(victim_registers(0, 0, 0, 0, 0, 0), 0);
  seen.makes_call = false;
  EXPECT_EQ(victim_registers(0, 0, 0, 0, 0, 0), 0);
  EXPECT_EQ(seen.calls, 2);
  expect_args(seen, {8, 9, 10, 11, 12, 13});
}

TEST(Patch, instructions_between_the_number_and_the_call_are_executed) {
  Seen seen;
  const Patch patch = patched(victim_between, kParent, &seen);
  EXPECT_EQ(patch.places[0].length, 13);
  EXPECT_EQ(victim_between(30, 0, 0, 0, 0, 0), 42);
  expect_args(seen, {7, 30});
}

// The called function returns as libc's functions do if it gets the number last, as the kernel does otherwise.
TEST(Patch, a_call_in_place_of_the_system_call) {
  const struct {
    long (*function)(long, long, long, long, long, long);
    std::vector<long> args, called;
    bool is_libcs;
  } victims[] = {{victim_calls_last, {1, 2, 3, 4, 0, 6}, {1, 2, 3, 4, 0, 6, SYS_getppid}, true},
                 {victim_calls_second, {1, 2, 5, 6, 7, 8}, {1, SYS_getppid, 1, 2, 5, 6, 7, 8}, false},
                 {victim_calls_first, {1, 3, 4, 5, 6, 7}, {SYS_getppid, 1, 3, 4, 5, 6, 7}, false}};
  for (const auto& victim : victims) {
    Seen seen;
    patched(victim.function, kParent, &seen);
    called = {};
    EXPECT_EQ(victim.function(1, 2, 3, 4, 5, 6), 42);
    EXPECT_EQ(called.calls, 0);
    expect_args(seen, victim.args);
    seen.result = -EPERM;
    errno = 0;
    EXPECT_EQ(victim.function(1, 2, 3, 4, 5, 6), victim.is_libcs ? -1 : -EPERM);
    EXPECT_EQ(errno, victim.is_libcs ? EPERM : 0);
    seen.makes_call = false;
    EXPECT_EQ(victim.function(1, 2, 3, 4, 5, 6), 77);
    EXPECT_EQ(called.calls, 1);
    for (size_t i = 0; i < victim.called.size(); ++i) {
      // The second one's first argument is what the function got there.
      EXPECT_EQ(called.args[i], victim.called[i]) << i;
    }
  }
}

TEST(Patch, the_functions_start_where_no_jump_fits_in_front_of_the_call) {
  ASSERT_EQ((address_of(victim_start) + 31) % 16, 15);
  Seen seen;
  const Patch patch = patched(victim_start, kParent, &seen);
  EXPECT_EQ(patch.places[0].kind, Kind::start);
  EXPECT_EQ(victim_start(1, 2, 3, 4, 5, 6), 42);
  expect_args(seen, {1, 2, 3, 4, 5, 6});
  seen.result = -ENOMEM;
  errno = 0;
  EXPECT_EQ(victim_start(1, 2, 3, 4, 5, 6), -1);
  EXPECT_EQ(errno, ENOMEM);
  seen.makes_call = false;
  EXPECT_EQ(victim_start(1, 2, 3, 4, 5, 0), getppid());
  EXPECT_EQ(victim_start(1, 2, 3, 4, 5, 1), -1) << "the instruction under the jump compares, and a branch follows";
}

TEST(Patch, a_function_of_the_driver_goes_on_behind_its_frame) {
  Seen first, second;
  first.makes_call = second.makes_call = false;
  const Patch patch = patched(victim_of_driver, {kNoCall}, &first);
  EXPECT_EQ(patch.places[0].offset, 10);
  EXPECT_EQ(victim_of_driver(30, 11, 0, 0, 0, 0), 42) << "the word is found from the island";
  expect_args(first, {30, 11});
  // Another copy of the library.
  const Patch later = patched(victim_of_driver, {kNoCall}, &second);
  EXPECT_NE(later.original, nullptr);
  EXPECT_EQ(later.bare, patch.bare) << "it knows the function's own bytes from the first copy";
  EXPECT_EQ(victim_of_driver(30, 11, 0, 0, 0, 0), 42);
  EXPECT_EQ(second.calls, 1);
}

// Code that makes the call at each place in a block of 16 bytes.
struct Page {
  uint8_t* code;
  long (*function)(long, long, long, long, long, long);
};
Page code_at(size_t place) {
  void* const got = mmap(nullptr, kPage, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const uint8_t call[] = {0xb8, SYS_getppid, 0, 0, 0, 0x0f, 0x05, 0xc3};
  auto* const code = static_cast<uint8_t*>(got);
  std::memset(code, 0x90, 32);
  std::memcpy(code + place, call, sizeof(call));
  return {code, reinterpret_cast<long (*)(long, long, long, long, long, long)>(got)};
}

TEST(Patch, functions_that_run_while_they_are_patched_never_see_half_a_jump) {
  for (size_t place = 0; place < 15; ++place) {
    for (int round = 0; round < 5; ++round) {
      const Page page = code_at(place);
      Seen seen;
      seen.result = getppid();
      std::atomic<bool> stop{false};
      std::atomic<int> wrong{0}, rounds{0};
      const long parent = getppid();
      test::Team callers(2, [&] {
        while (!stop.load(std::memory_order_relaxed)) {
          if (page.function(1, 2, 3, 4, 5, 6) != parent) wrong.fetch_add(1);
          rounds.fetch_add(1);
        }
      });
      while (rounds.load() < 20) std::this_thread::yield();
      patched(page.function, kParent, &seen);
      const int before = rounds.load();
      while (rounds.load() < before + 20) std::this_thread::yield();
      stop = true;
      callers.join();
      EXPECT_EQ(wrong.load(), 0) << place;
      EXPECT_GT(seen.calls, 0) << place;
      munmap(page.code, kPage);
    }
  }
}

TEST(Patch, a_place_that_ends_a_block_another_number_or_one_that_is_loaded_elsewhere_is_left_alone) {
  Patch patch;
  Seen seen;
  for (const auto function : {code_at(15).function, victim_other_number, victim_unknown}) {
    EXPECT_TRUE(prepare(address_of(function), kParent, record_hook, &seen, &patch).is(PINRAIL_ERR_NOT_SUPPORTED));
  }
  EXPECT_TRUE(prepare(address_of(victim_other_number), {SYS_munmap, SYS_getpid}, record_hook, &seen, &patch).ok());
}

TEST(Patch, only_the_jump_changes_and_the_page_is_protected_as_before) {
  const Page page = code_at(13);
  mprotect(page.code, kPage, PROT_READ | PROT_EXEC);
  const std::vector<uint8_t> before(page.code, page.code + 64);
  Seen seen;
  const Patch patch = patched(page.function, kParent, &seen);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE((i >= 13 && i < 13 + kJumpLength) || page.code[i] == before[i]) << i;
  }
  EXPECT_EQ(page.code[13], 0xe9);
  struct Look {
    uintptr_t code, island;
    int code_protection, island_protection;
  } look{address_of(page.code), patch.islands[0], 0, 0};
  for_each_mapping([&look](const Mapping& mapping) {
    if (look.code >= mapping.base && look.code < mapping.end) look.code_protection = mapping.protection;
    if (look.island >= mapping.base && look.island < mapping.end) look.island_protection = mapping.protection;
    return true;
  });
  EXPECT_EQ(look.code_protection, PROT_READ | PROT_EXEC);
  EXPECT_EQ(look.island_protection, PROT_READ | PROT_EXEC);
}

TEST(Patch, a_function_that_changed_since_it_was_looked_at_is_left_alone) {
  Seen early, late;
  Patch prepared;
  ASSERT_TRUE(prepare(address_of(victim_changed), kParent, record_hook, &early, &prepared).ok());
  patched(victim_changed, kParent, &late);
  EXPECT_TRUE(activate(&prepared).is(PINRAIL_ERR_BUSY));
  EXPECT_EQ(victim_changed(0, 0, 0, 0, 0, 0), 42);
  EXPECT_EQ(late.calls, 1);
  EXPECT_EQ(early.calls, 0);
}

TEST(Patch, functions_are_written_together_but_for_one_that_changed) {
  Seen first, early, late, third;
  Patch patches[3];
  Patch* const list[] = {&patches[0], &patches[1], &patches[2]};
  ASSERT_TRUE(prepare(address_of(victim_first), kParent, record_hook, &first, &patches[0]).ok());
  ASSERT_TRUE(prepare(address_of(victim_second), kParent, record_hook, &early, &patches[1]).ok());
  ASSERT_TRUE(prepare(address_of(victim_third), kParent, record_hook, &third, &patches[2]).ok());
  EXPECT_EQ(patches[0].islands[0] / kPage, patches[2].islands[0] / kPage) << "their islands are on one page";
  patched(victim_second, kParent, &late);
  activate(list, 3);
  EXPECT_TRUE(patches[0].written.ok() && patches[1].written.is(PINRAIL_ERR_BUSY) && patches[2].written.ok());
  for (const auto function : {victim_first, victim_second, victim_third}) EXPECT_EQ(function(0, 0, 0, 0, 0, 0), 42);
  EXPECT_EQ(first.calls, 1);
  EXPECT_EQ(early.calls, 0);
  EXPECT_EQ(late.calls, 1);
  EXPECT_EQ(third.calls, 1);
}

// The list of mappings may have one of them twice.
TEST(Patch, a_function_that_is_met_twice_is_written_once) {
  Seen seen, other;
  Patch patch, again, of_other;
  ASSERT_TRUE(prepare(address_of(victim_again), kParent, record_hook, &seen, &patch).ok());
  Patch* const list[] = {&patch, &patch};
  activate(list, 2);
  EXPECT_TRUE(patch.written.ok());
  EXPECT_EQ(victim_again(0, 0, 0, 0, 0, 0), 42);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_TRUE(prepare(address_of(victim_again), kParent, record_hook, &other, &of_other).ok());
  EXPECT_EQ(of_other.original, reinterpret_cast<const Record*>(patch.islands[0]) - 1);
  EXPECT_TRUE(prepare(address_of(victim_again), kParent, record_hook, &seen, &again).ok());
  EXPECT_EQ(again.original, nullptr) << "its own hook would call itself";
}

bool is_in(uintptr_t address, long (*function)(long, long, long, long, long, long)) {
  return address > address_of(function) && address < address_of(function) + 64;
}

TEST(Patch, an_unwinder_finds_the_function_and_its_caller) {
  Seen seen;
  patched(victim_unwound, kParent, &seen);
  std::vector<uintptr_t> here, frames;
  unwind(&here);
  unwound = &frames;
  EXPECT_EQ(victim_unwound(0, 0, 0, 0, 0, 0), 42);
  unwound = nullptr;
  size_t at = 0;
  while (at < frames.size() && !is_in(frames[at], victim_unwound)) ++at;
  ASSERT_LT(at, frames.size());
  // Behind it comes this test, and behind that the same frames as now.
  const size_t callers = frames.size() - at - 2;
  ASSERT_GT(callers, 2u);
  ASSERT_GE(here.size(), callers);
  EXPECT_TRUE(std::equal(here.end() - static_cast<ptrdiff_t>(callers), here.end(),
                         frames.end() - static_cast<ptrdiff_t>(callers)));
}

// The gap below a mapping may begin far beyond the reach, and end just below it; or a small gap alone is near.
TEST(Patch, an_island_lies_in_the_gap_that_is_near) {
  constexpr size_t kGiB = size_t{1} << 30, kGap = 16 * 4096;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const struct { size_t gap, length, near; } rows[] = {{0, 6 * kGiB, 6 * kGiB}, {4 * kGiB + 75 * 4096, kGap, 4 * kGiB}};
  for (const auto& row : rows) {
    auto* const all = static_cast<uint8_t*>(mmap(nullptr, 8 * kGiB, PROT_NONE, kFlags, -1, 0));
    ASSERT_NE(all, MAP_FAILED);
    munmap(all + row.gap, row.length);
    uint8_t* const island = map_near(reinterpret_cast<uintptr_t>(all + row.near), kGiB);
    ASSERT_NE(island, nullptr);
    EXPECT_LT(island, all + row.gap + row.length);
    EXPECT_GE(island, row.gap == 0 ? all + row.near - kGiB : all + row.gap);
    munmap(island, 4096);
    munmap(all, row.gap);
    munmap(all + row.gap + row.length, 8 * kGiB - row.gap - row.length);
  }
}

TEST(Maps, the_list_is_read_as_it_is_written_until_the_visitor_has_seen_enough) {
  std::vector<Mapping> all;
  all.reserve(4096);
  size_t most = SIZE_MAX;
  const auto look = [&](const Mapping& mapping) {
    all.push_back(mapping);
    return all.size() < most;
  };
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "maps", 0));
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  void* const mapped = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0x3000);
  struct stat about {};
  ASSERT_EQ(fstat(fd, &about), 0);
  ASSERT_TRUE(for_each_mapping(look));
  uintptr_t last_end = 0;
  bool has_file = false, has_stack = false;
  for (const Mapping& mapping : all) {
    EXPECT_TRUE(last_end <= mapping.base && mapping.base < mapping.end);
    last_end = mapping.end;
    has_stack = has_stack || std::string(mapping.path) == "[stack]";
    if (mapping.base != reinterpret_cast<uintptr_t>(mapped)) continue;
    has_file = true;
    EXPECT_EQ(mapping.end - mapping.base, 8192u);
    EXPECT_EQ(mapping.inode, about.st_ino);
    EXPECT_EQ(mapping.protection, PROT_READ);
    EXPECT_EQ(mapping.device, about.st_dev);
    EXPECT_EQ(mapping.offset, 0x3000u);
    EXPECT_TRUE(mapping.is_shared);
    EXPECT_EQ(std::string(mapping.path), "/memfd:maps (deleted)");
  }
  EXPECT_TRUE(has_file && has_stack);
  Mapping found;
  ASSERT_TRUE(find_mapping(reinterpret_cast<uintptr_t>(mapped), &found));
  EXPECT_EQ(found.base, reinterpret_cast<uintptr_t>(mapped));
  EXPECT_EQ(std::string(found.path), "/memfd:maps (deleted)");
  munmap(mapped, 8192);
  close(fd);
  all.clear();
  most = 1;
  EXPECT_TRUE(for_each_mapping(look));
  EXPECT_EQ(all.size(), 1u);
}

}  // namespace
}  // namespace pinrail::patch

long pinrail_test_called(long a, long b, long c, long d, long e, long f, long g, long h) {
  using pinrail::patch::called;
  const long args[8] = {a, b, c, d, e, f, g, h};
  ++called.calls;
  std::memcpy(called.args, args, sizeof(args));
  return 77;
}

#else

TEST(Patch, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "the functions are written for x86-64 Linux, without ThreadSanitizer";
}

#endif
