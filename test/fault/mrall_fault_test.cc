// SPDX-License-Identifier: BSD-3-Clause
// The n-th allocation fails while a pool of mpool/mrall is asked what is registered, and while it registers: no
// reference is lost, so the pool can be destroyed.
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/mpool/mrall_under_test.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

// Maps, has the mapping registered, asks for everything, and unmaps.
void follow_and_query(pinrail_mpool_t* pool) {
  void* const at = mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  (void)pinrail_mpool_progress(pool);
  pinrail_pinned_t pinned;
  const pinrail_status_t status =
      pinrail_mpool_query(pool, reinterpret_cast<void*>(kPage), (size_t{1} << 47) - 2 * kPage,
                          PINRAIL_ACCESS_REMOTE_READ, &pinned, nullptr, 0, nullptr);
  EXPECT_TRUE(status == PINRAIL_SUCCESS || status == PINRAIL_ERR_OUT_OF_RESOURCE) << status;
  munmap(at, 64 * kPage);
}

// The pool registers what is mapped, without a request for it, although the first look at it failed: there are more
// mappings than it had room for.
TEST(NthAllocation, of_a_round_fails_and_what_it_was_to_look_at_is_registered_later) {
  NEED_GLIBC("the library brings its own operator new");
  if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
  constexpr size_t kMany = 4096;
  const Library library(Settings{{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  fake::FakeOptions options;
  options.zero_cost = true;
  const fake::FakeRegistrar registrar(options);
  auto* const many =
      static_cast<char*>(mmap(nullptr, kMany * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(many, MAP_FAILED);
  MrallPool pool(registrar);
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  for (size_t i = 0; i < kMany; i += 2) mprotect(many + i * kPage, kPage, PROT_READ);
  void* at = MAP_FAILED;
  EXPECT_TRUE(with_nth_allocation_failing(1, [&] {
    at = mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 5000 && allocations_left > 0; ++i) usleep(1000);
  }));
  pinrail_pinned_t pinned = PINRAIL_PINNED_NONE;
  for (int i = 0; i < 5000 && pinned != PINRAIL_PINNED_WHOLLY; ++i) {
    usleep(1000);
    EXPECT_EQ(pinrail_mpool_query(pool.get(), at, kPage, PINRAIL_ACCESS_REMOTE_READ, &pinned, nullptr, 0, nullptr),
              PINRAIL_SUCCESS);
  }
  EXPECT_EQ(pinned, PINRAIL_PINNED_WHOLLY);
  munmap(at, 64 * kPage);
  munmap(many, kMany * kPage);
}

TEST(NthAllocation, of_a_pool_that_registers_everything_fails_and_no_reference_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
  const Library library(Settings{{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  int harmless = 0, reached = 0;
  // Several passes without a failure end the test: threads may allocate in another order.
  for (long n = 1; harmless < 3 && n < 200; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    fake::FakeOptions options;
    options.zero_cost = true;
    const fake::FakeRegistrar registrar(options);
    MrallPool pool(registrar);
    ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
    const bool hit = with_nth_allocation_failing(n, [&] { follow_and_query(pool.get()); });
    harmless += hit ? 0 : 1;
    reached += hit ? 1 : 0;
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS) << "it works on";
    EXPECT_TRUE(pool.invariants_hold());
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << "nothing is referenced";
  }
  EXPECT_GT(reached, 3);
}

}  // namespace
}  // namespace pinrail::test
