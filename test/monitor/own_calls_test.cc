// SPDX-License-Identifier: BSD-3-Clause
// Allocators that give memory back by system calls of their own: they are found at the start, or when they come, and
// what they take away is kept only where a monitor sees such calls. (Under sanitizers, and one that is loaded later
// beside uffd: test/own_calls_test.sh.)
#include <dlfcn.h>
#include <pinrail/listing.h>

#include <cstdlib>

#include "config.h"
#include "test/monitor/uffd_library.h"
#include "test/support/cases.h"

namespace pinrail::test {
namespace {

constexpr size_t kLength = size_t{1} << 20;

struct RawAllocator {
  explicit RawAllocator(const char* name = "raw_malloc")
      : library(dlopen((std::string(PINRAIL_TEST_BUILD "/test/own_calls/.libs/") + name + ".so").c_str(),
                       RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) return;
    take = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "malloc"));
    give = reinterpret_cast<void (*)(void*)>(dlsym(library, "free"));
  }
  void* library;
  void* (*take)(size_t) = nullptr;
  void (*give)(void*) = nullptr;
};

bool keeps_private_memory() {
  auto kind = sized<pinrail_memory_kind_t>();
  return pinrail_memory_kind_at(0, &kind) == PINRAIL_SUCCESS && kind.is_kept != 0;
}
int64_t has_monitor(const char* name) {
  return std::string(pinrail_monitors_at_work()).find(name) != std::string::npos ? 1 : 0;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHasOwnAllocator = true;
#else
constexpr bool kHasOwnAllocator = false;
#endif

// Neither a monitor of system calls nor one that can be tried here: nothing to show.
#define NEED_PATCHER()                                                                                         \
  do {                                                                                                         \
    if (kHasOwnAllocator) GTEST_SKIP() << "AddressSanitizer brings such an allocator: test/own_calls_test.sh"; \
    const Library trial(Settings{{"monitor", "patcher"}});                                                     \
    if (trial.status != PINRAIL_SUCCESS) GTEST_SKIP() << "monitor/patcher does not work";                      \
  } while (false)

Settings by_default() { return {{"monitor", ""}}; }

// A block of the allocator is kept, and not after it was given back. 1, 1: as it should be where something is kept.
ChildAnswer use_block(const Pool& pool, const RawAllocator& raw) {
  void* const block = raw.take(kLength);
  const auto base = reinterpret_cast<uintptr_t>(block);
  pool.use(base, kLength);
  pool.use(base, kLength);  // the first miss may be what finds the allocator
  const int64_t kept = pool.has(base, kLength) ? 1 : 0;
  raw.give(block);
  return {kept, pool.has(base, kLength) ? 0 : 1};
}

// By its code, or by a trial where that does not show which system calls it makes.
TEST(OwnCalls, what_was_loaded_before_the_start_is_tried_and_uffd_joins) {
  NEED_PATCHER();
  NEED_UFFD();
  for (const char* const name : {"raw_malloc", "raw_hidden_now"}) {
    const ChildAnswer answer = answer_of([name] {
      const RawAllocator raw(name);
      const Library library(by_default());
      fake::FakeRegistrar fake;
      const Pool pool(fake);
      ChildAnswer said = use_block(pool, raw);
      said[2] = has_monitor("uffd");
      said[3] = has_monitor("patcher");
      return said;
    });
    EXPECT_EQ(answer, (ChildAnswer{1, 1, 1, 1})) << name;
  }
}

#ifdef __GLIBC__
// The library in a namespace of its own has a libc of its own, and the program calls the other one.
TEST(OwnCalls, patches_of_a_libc_that_the_program_does_not_call_are_not_trusted) {
  NEED_PATCHER();
  const ChildAnswer answer = answer_of([] {
    setenv("PINRAIL_MCA_monitor", "patcher", 1);
    void* const other = dlmopen(LM_ID_NEWLM, PINRAIL_TEST_BUILD "/.libs/libpinrail.so", RTLD_NOW | RTLD_LOCAL);
    if (other == nullptr) return ChildAnswer{PINRAIL_ERR_NOT_SUPPORTED};  // a build without a shared library
    return ChildAnswer{reinterpret_cast<decltype(&pinrail_init)>(dlsym(other, "pinrail_init"))(nullptr)};
  });
  EXPECT_EQ(answer[0], PINRAIL_ERR_NOT_SUPPORTED);
}
#endif

// What was cached before may be the allocator's memory, which no monitor watches.
TEST(OwnCalls, what_was_cached_when_one_came_is_given_up) {
  NEED_PATCHER();
  const ChildAnswer answer = answer_of([] {
    const Library library(Settings{{"monitor", "patcher"}});
    fake::FakeRegistrar fake;
    const Pool pool(fake);
    const uintptr_t early = raw_map(1), later = raw_map(1);
    pool.use(early, kPage);
    const int64_t before = pool.has(early, kPage) ? 1 : 0;
    const RawAllocator raw;
    usleep(2000);
    pool.use(later, kPage);
    return ChildAnswer{before, pool.has(early, kPage) ? 1 : 0, keeps_private_memory() ? 1 : 0, use_block(pool, raw)[0]};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, 0, 0, 0}));
}

// n: the allocation that fails in the miss that finds the allocator. 0, 0: what was cached before is given up, and
// nothing is kept. The third: whether it came to the n-th.
ChildAnswer find_without_memory(long n) {
  const Library library(Settings{{"monitor", "patcher"}});
  fake::FakeOptions options;
  options.zero_cost = true;  // the fake's own allocations are not under test
  fake::FakeRegistrar fake(options);
  const Pool pool(fake);
  const uintptr_t early = raw_map(1), later = raw_map(2);
  pool.use(early, kPage);
  const RawAllocator raw;
  usleep(2000);  // not every miss looks, if the last one did
  const bool failed = with_nth_allocation_failing(n, [&] {
    pinrail_handle_t handle{};
    if (pool.reg(later, kPage, &handle) == PINRAIL_SUCCESS) Status(pinrail_mpool_deregister(handle)).ignore();
  });
  usleep(2000);
  pool.use(later + kPage, kPage);
  return ChildAnswer{pool.has(early, kPage) ? 1 : 0, keeps_private_memory() ? 1 : 0, failed ? 1 : 0};
}

TEST(OwnCalls, what_was_cached_when_one_came_is_given_up_without_memory_too) {
  NEED_PATCHER();
  NEED_GLIBC("the library brings its own operator new");
  for (long n = 1;; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    const ChildAnswer answer = answer_of([n] { return find_without_memory(n); });
    EXPECT_EQ(answer[0], 0);
    EXPECT_EQ(answer[1], 0);
    if (answer[2] == 0) break;
  }
}

TEST(OwnCalls, without_a_monitor_that_sees_them_private_memory_is_not_kept_and_leave_pinned_is_refused) {
  NEED_PATCHER();
  const ChildAnswer answer = answer_of([] {
    const RawAllocator raw;
    const Library library(Settings{{"monitor", "patcher"}});
    fake::FakeRegistrar fake;
    const Pool pool(fake);
    auto kind = sized<pinrail_memory_kind_t>();
    const bool found = pinrail_memory_kind_at(0, &kind) == PINRAIL_SUCCESS;
    return ChildAnswer{found ? kind.is_kept : -1, pool.status, pinrail_monitor_works()};
  });
  EXPECT_EQ(answer, (ChildAnswer{0, PINRAIL_ERR_NOT_SUPPORTED, 0}));
}

TEST(OwnCalls, a_parameter_says_that_allocators_can_be_trusted) {
  NEED_PATCHER();
  const ChildAnswer answer = answer_of([] {
    const RawAllocator raw;
    const Library library(Settings{{"monitor", "patcher"}, {"monitor_trust_allocators", "yes"}});
    return ChildAnswer{keeps_private_memory() ? 1 : 0};
  });
  EXPECT_EQ(answer, (ChildAnswer{1}));
}

TEST(OwnCalls, the_c_library_has_none) {
  NEED_PATCHER();
  const Library library(by_default());
  EXPECT_TRUE(keeps_private_memory());
  EXPECT_STREQ(pinrail_monitors_at_work(), "patcher");
}

}  // namespace
}  // namespace pinrail::test
