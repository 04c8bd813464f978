// SPDX-License-Identifier: BSD-3-Clause
// R10: an allocation fails in finalize or destroy. These end everything, or nothing; no monitor goes on without its
// component. And one fails while a parameter is set: all that follow it change, or nothing does.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/monitor/foreign_patches.h"
#include "test/mpool/mrall_and_odp.h"
#include "test/support/cases.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

// Whether it came to the n-th allocation, and how often finalize failed.
ChildAnswer finalize_without_memory(long n) {
  Library library(Settings{{"monitor", ""}, {"monitor_patcher_check_interval", "1"}});
  fake::FakeRegistrar fake;
  Pool pool(fake, {PINRAIL_UNSET});
  pool.close();
  pinrail_status_t status = PINRAIL_ERR_ERROR;
  const bool failed = with_nth_allocation_failing(n, [&] { status = pinrail_finalize(); });
  const int64_t refused = status == PINRAIL_SUCCESS ? 0 : 1;
  if (status != PINRAIL_SUCCESS) status = pinrail_finalize();
  library.status = PINRAIL_ERR_BUSY;  // finalized already
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  usleep(5000);  // what a thread of the monitor would need to notice that its context is gone
  munmap(page, kPage);
  const Library again(Settings{{"monitor", ""}});
  return {failed ? 1 : 0, refused, status, again.status};
}

TEST(FinalizeFault, the_nth_allocation_fails_and_nothing_goes_on) {
  NEED_GLIBC("the library brings its own operator new");
  for_each_allocation([](long n) {
    const ChildAnswer answer = answer_of([n] { return finalize_without_memory(n); });
    EXPECT_EQ(answer[2], PINRAIL_SUCCESS);
    EXPECT_EQ(answer[3], PINRAIL_SUCCESS);
    return answer[0] == 1;
  });
}

// Whether it came to the n-th allocation of the destroy, which is refused because a registration is referenced; and
// whether the pool works on: another one of its cache still gets room from it.
bool is_refused_and_gives_room(long n) {
  const Library library;
  const fake::FakeRegistrar fake(without_cost());
  const PoolOptions two_registrations = {1, PINRAIL_UNSET, 2};
  constexpr uintptr_t kBase = 0x10000000;
  Pool pool(fake, two_registrations);
  const Pool other(fake, two_registrations);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  pool.use(kBase + 10 * kPage, kPage);
  pinrail_status_t status = PINRAIL_SUCCESS;
  const bool failed = with_nth_allocation_failing(n, [&] { status = pool.close(); });
  EXPECT_EQ(status, PINRAIL_ERR_BUSY);
  pinrail_handle_t evicts{};
  EXPECT_EQ(other.reg(kBase + 20 * kPage, kPage, &evicts), PINRAIL_SUCCESS);
  drop(evicts);
  drop(held);
  return failed;
}

// The statistics sum up pages, which takes memory.
TEST(DestroyFault, with_print_stats_the_nth_allocation_fails_and_the_pool_is_destroyed) {
  NEED_GLIBC("the library brings its own operator new");
  for_each_allocation([](long n) {
    const Library library(Settings{{"mpool_grdma_print_stats", "yes"}});
    const fake::FakeRegistrar fake(without_cost());
    Pool pool(fake);
    pool.use(0x10000000, kPage);
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool failed = with_nth_allocation_failing(n, [&] { status = pool.close(); });
    EXPECT_EQ(status, PINRAIL_SUCCESS);
    return failed;
  });
}

TEST(DestroyFault, of_a_pool_that_is_held_the_nth_allocation_fails_and_nothing_changes) {
  NEED_GLIBC("the library brings its own operator new");
  for_each_allocation(is_refused_and_gives_room);
}

// Of a pool that registers everything: what is mapped afterwards is still registered.
ChildAnswer destroy_pool_of_everything(long n) {
  const Library library(Settings{{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}});
  const fake::FakeRegistrar fake(without_cost());
  MrallPool pool(fake);
  void* const before = map(kPage);
  pinrail_handle_t held{};
  if (pool.reg(before, kPage, kRead, &held) != PINRAIL_SUCCESS) return {};
  pinrail_status_t status = PINRAIL_SUCCESS;
  const bool failed = with_nth_allocation_failing(n, [&] { status = pool.close(); });
  alarm(20);
  const pinrail_status_t later = pool.use(map(kPage), kPage);
  Status(pinrail_mpool_deregister(held)).ignore();
  return {1, failed ? 1 : 0, status, later};
}

TEST(DestroyFault, of_a_pool_of_everything_the_nth_allocation_fails_and_it_goes_on) {
  NEED_GLIBC("the library brings its own operator new");
  if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
  for_each_allocation([](long n) {
    const ChildAnswer answer = answer_of([n] { return destroy_pool_of_everything(n); });
    EXPECT_EQ(answer[0], 1);
    EXPECT_EQ(answer[2], PINRAIL_ERR_BUSY);
    EXPECT_EQ(answer[3], PINRAIL_SUCCESS);
    return answer[1] == 1 && n < 50;
  });
}

std::string value_of(const char* name) {
  auto info = sized<pinrail_param_info_t>();
  EXPECT_EQ(pinrail_param_find(name, &info), PINRAIL_SUCCESS);
  return info.value;
}

// "A call that fails changes nothing": neither the parameter nor those that follow it.
TEST(ParamFault, the_nth_allocation_fails_and_all_that_follow_are_set_or_none) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library;
  for_each_allocation([](long n) {
    const std::string before = value_of("mpool_base_verbose"), after = std::to_string(n % 97 + 1);
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool failed =
        with_nth_allocation_failing(n, [&] { status = pinrail_param_set("mpool_base_verbose", after.c_str()); });
    EXPECT_EQ(value_of("mpool_base_verbose"), status == PINRAIL_SUCCESS ? after : before);
    EXPECT_EQ(value_of("mpool_grdma_verbose"), value_of("mpool_base_verbose"));
    EXPECT_EQ(value_of("mpool_odp_verbose"), value_of("mpool_base_verbose"));
    return failed;
  });
}

// E6, R9: another library patches over monitor/patcher until that gives up, and an allocation fails meanwhile.

#if PINRAIL_CAN_PATCH

uintptr_t map_page() {
  void* const got = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return reinterpret_cast<uintptr_t>(got);
}

// A miss finds the patch over ours. Not every miss looks, if the last one did.
void miss(const Pool& pool, uintptr_t page) {
  usleep(1000);
  pinrail_handle_t handle{};
  if (pool.reg(page, kPage, &handle) == PINRAIL_SUCCESS) Status(pinrail_mpool_deregister(handle)).ignore();
}

// Whether what was cached is returned after the monitor has given up, whether anything may still be kept, and whether
// it came to the n-th allocation of the miss in which it gave up.
ChildAnswer give_up_without_memory(long n) {
  const Library library(Settings{{"monitor", "patcher"}, {"monitor_patcher_check_interval", "3600000"}});
  const fake::FakeRegistrar fake(without_cost());
  const Pool pool(fake);
  const uintptr_t early = map_page(), later = map_page();
  pool.use(early, kPage);
  const int64_t before = pool.has(early, kPage) ? 1 : 0;
  patch_as_open_mpi("madvise", reinterpret_cast<uintptr_t>(bare_madvise));
  const bool failed = with_nth_allocation_failing(n, [&] {
    miss(pool, later);
    (void)comes_true([] { return pinrail_monitor_works() == 0; });  // its own thread may be at it
  });
  return {before, pool.has(early, kPage) ? 1 : 0, pinrail_monitor_works(), failed ? 1 : 0};
}

TEST(PatcherFault, what_is_cached_dies_with_it_without_memory_too) {
  NEED_GLIBC("the library brings its own operator new");
  for_each_allocation([](long n) {
    const ChildAnswer answer = answer_of([n] { return give_up_without_memory(n); });
    EXPECT_EQ(answer[0], 1);
    EXPECT_EQ(answer[1], 0);
    EXPECT_EQ(answer[2], 0);
    return answer[3] == 1;
  });
}

#else

TEST(PatcherFault, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "code is patched on Linux, x86-64 or 64-bit Arm, without ThreadSanitizer";
}

#endif

}  // namespace
}  // namespace pinrail::test
