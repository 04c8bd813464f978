// SPDX-License-Identifier: BSD-3-Clause
// grdma_session_test.cc - threads outlive a session of the library: what they noted in it means nothing in the next
// one, in which the components may lie at the same addresses and count from the same numbers again.
#include <gtest/gtest.h>

#include <thread>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

uintptr_t at(uintptr_t page) { return 0x10000000 + page * kPage; }

// A persistent request does not search before it announces itself.
TEST(GrdmaSession, what_was_absent_in_one_session_is_found_in_the_next) {
  {
    Library library;
    fake::FakeRegistrar fake;
    Pool pool(fake);
    pool.use(at(0), kPage);
    ASSERT_FALSE(pool.has(at(1000), kPage));
  }
  Library library;
  fake::FakeRegistrar fake;
  Pool pool(fake);
  pinrail_handle_t first{};
  std::thread([&] { first = pool.must(at(1000), kPage, 1, PINRAIL_FLAG_PERSISTENT); }).join();
  const pinrail_handle_t second = pool.must(at(1000), kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(second.reg, first.reg);
  EXPECT_EQ(fake.live_count(), 1u);
  EXPECT_EQ(pinrail_mpool_deregister(second), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(first), PINRAIL_SUCCESS);
}

// The place of the range in the index is another one than in the session before.
TEST(GrdmaSession, an_insert_goes_no_way_of_the_last_session) {
  {
    Library library;
    fake::FakeRegistrar fake;
    Pool pool(fake);
    std::thread([&] {
      pool.use(at(10), kPage);
      pool.use(at(70), kPage);
    }).join();
    ASSERT_FALSE(pool.has(at(25), 35 * kPage));
  }
  Library library;
  fake::FakeRegistrar fake;
  Pool pool(fake);
  std::thread([&] {
    pool.use(at(40), kPage);
    pool.use(at(70), kPage);
  }).join();
  const pinrail_handle_t wide = pool.must(at(25), 35 * kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_TRUE(pool.invariants_hold());
  std::thread([&] { EXPECT_TRUE(pool.has(at(25), 35 * kPage)); }).join();
  report(at(30), kPage);
  EXPECT_EQ(pool.stats().invalidations, 1u);
  EXPECT_EQ(pinrail_mpool_deregister(wide), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
