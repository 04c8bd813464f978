// SPDX-License-Identifier: BSD-3-Clause
// grdma_session_test.cc - what outlives a session of the library, or a fork, and means nothing in the next one. Threads
// do, and what they noted; the components may lie at the same addresses and count from the same numbers again. Handles
// of a pool that was destroyed by force do, too.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "test/support/library.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

uintptr_t at(uintptr_t page) { return 0x10000000 + page * kPage; }

struct Session {
  Library library;
  fake::FakeRegistrar fake;
  Pool pool{fake};
};

// Whether the part of the test was right, run in a forked child.
template <typename Part>
bool is_right_in_child(Part part) {
  ChildAnswer answer{};
  return in_child([&]() -> ChildAnswer { return {part() ? 1 : 0}; }, &answer) && answer[0] == 1;
}

// A persistent request does not search before it announces itself.
TEST(GrdmaSession, what_was_absent_in_one_session_is_found_in_the_next) {
  {
    Session session;
    session.pool.use(at(0), kPage);
    ASSERT_FALSE(session.pool.has(at(1000), kPage));
  }
  Session session;
  Pool& pool = session.pool;
  pinrail_handle_t first{};
  std::thread([&] { first = pool.must(at(1000), kPage, 1, PINRAIL_FLAG_PERSISTENT); }).join();
  const Held second = pool.hold(at(1000), kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(second.reg, first.reg);
  EXPECT_EQ(session.fake.live_count(), 1u);
  drop(first);
}

// The place of the range in the index is another one than in the session before.
TEST(GrdmaSession, an_insert_goes_no_way_of_the_last_session) {
  const auto use_two = [](Pool* pool, uintptr_t first) {
    std::thread([&] {
      pool->use(at(first), kPage);
      pool->use(at(70), kPage);
    }).join();
  };
  {
    Session session;
    use_two(&session.pool, 10);
    ASSERT_FALSE(session.pool.has(at(25), 35 * kPage));
  }
  Session session;
  Pool& pool = session.pool;
  use_two(&pool, 40);
  const Held wide = pool.hold(at(25), 35 * kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_TRUE(pool.invariants_hold());
  std::thread([&] { EXPECT_TRUE(pool.has(at(25), 35 * kPage)); }).join();
  report(at(30), kPage);
  EXPECT_EQ(pool.stats().invalidations, 1u);
}

// The slots that counted the orphan's references are those of the parent's threads. What a child registers later could
// get its memory, with a count that balances these slots.
TEST(GrdmaSession, what_a_child_holds_is_held_although_it_has_dropped_an_orphan_of_its_parent) {
  Library library;
  fake::FakeRegistrar fake;
  pinrail_handle_t orphan{};
  {
    Pool pool(fake);
    orphan = pool.must(at(0), kPage);
    ASSERT_EQ(pool.close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  }
  EXPECT_TRUE(is_right_in_child([&] {
    Library of_child;
    if (pinrail_mpool_deregister(orphan) != PINRAIL_SUCCESS) return false;
    fake::FakeRegistrar other_fake;
    Pool pool(other_fake, at_most(1));
    pool.must(at(1), kPage);
    pinrail_handle_t other{};
    return pool.reg(at(500), kPage, &other) != PINRAIL_SUCCESS && pool.has(at(1), kPage);
  }));
  drop(orphan);
}

TEST(GrdmaSession, what_is_idle_in_a_child_is_idle_although_it_has_dropped_an_orphan_of_its_parent) {
  Library library;
  fake::FakeRegistrar fake;
  pinrail_handle_t orphan{};
  {
    Pool pool(fake);
    std::thread([&] {
      orphan = pool.must(at(0), kPage);
      pool.must(at(0), kPage);
    }).join();
    ASSERT_EQ(pinrail_mpool_deregister(orphan), PINRAIL_SUCCESS);
    ASSERT_EQ(pool.close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  }
  EXPECT_TRUE(is_right_in_child([&] {
    Library of_child;
    if (pinrail_mpool_deregister(orphan) != PINRAIL_SUCCESS) return false;
    fake::FakeRegistrar other_fake;
    Pool pool(other_fake);
    pool.use(at(1), kPage);
    return pool.close() == PINRAIL_SUCCESS;
  }));
  drop(orphan);
}

// A child's first call is one as well: what is called from within it is refused.
TEST(GrdmaSession, a_call_within_the_first_call_of_a_child_is_refused) {
  Library library;
  EXPECT_TRUE(is_right_in_child([] {
    static pinrail_status_t within = PINRAIL_SUCCESS;
    alarm(10);
    pinrail_set_message_function([](void*, int, const char*, const char*) { within = pinrail_finalize(); }, nullptr);
    const Library of_child(Settings{{"mpool", "^nonsense"}});  // says that there is none of that name
    return within == PINRAIL_ERR_BUSY;
  }));
}

}  // namespace
}  // namespace pinrail::test
