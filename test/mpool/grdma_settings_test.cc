// SPDX-License-Identifier: BSD-3-Clause
// mpool/grdma as parameters set it, what does not work before pinrail_init() or after pinrail_finalize(), and what
// means nothing in the next session of the library, or in a forked child.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "test/support/cases.h"
#include "test/support/library.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

TEST(GrdmaSettings, limits_come_from_parameters_and_empty_cache_evicts_all) {
  Library library(Settings{{"mpool_grdma_count_limit", "3"}, {"mpool_grdma_empty_cache", "yes"}});
  fake::FakeRegistrar fake;
  Pool pool(fake);
  for (uintptr_t i = 1; i <= 3; ++i) pool.use(kBase * i, kPage);
  pool.use(kBase * 4, kPage);
  EXPECT_EQ(fake.live_count(), 1u);
}

TEST(GrdmaSettings, a_miss_or_a_find_drains_first_when_the_gc_limit_is_passed) {
  Library library(Settings{{"mpool_grdma_gc_limit", "8K"}});
  fake::FakeRegistrar fake;
  Pool pool(fake);
  pool.use(kBase, kPage);
  for (uintptr_t i = 2; i <= 5; ++i) pool.use(kBase * i, kPage);
  for (uintptr_t i = 2; i <= 3; ++i) report(kBase * i, kPage);
  pool.use(kBase, kPage);  // a hit, and the limit is not passed yet
  EXPECT_EQ(fake.live_count(), 5u);
  report(kBase * 4, kPage);
  pinrail_handle_t handle;
  ASSERT_EQ(pinrail_mpool_find(pool.get(), reinterpret_cast<void*>(kBase), kPage, 0, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(fake.live_count(), 2u) << "a hit, but first this";
  drop(handle);
  report(kBase, kPage);
  pool.use(kBase, kPage);  // a miss
  EXPECT_EQ(fake.live_count(), 2u);
}

TEST(GrdmaSettings, without_a_monitor_auto_keeps_nothing_and_yes_is_refused) {
  Library library(Settings{{"monitor", "none"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  fake::FakeRegistrar fake;
  Pool pool(fake, {PINRAIL_UNSET});
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().leave_pinned, 0u);
  pool.use(kBase, kPage);
  EXPECT_EQ(fake.live_count(), 0u);
  Pool wanted(fake, {1});
  EXPECT_EQ(wanted.status, PINRAIL_ERR_NOT_SUPPORTED);
}

TEST(GrdmaSettings, the_global_leave_pinned_gives_way_to_the_pools_own) {
  {
    Library library(Settings{{"leave_pinned", "0"}});
    fake::FakeRegistrar fake;
    EXPECT_EQ(Pool(fake, {PINRAIL_UNSET}).stats().leave_pinned, 0u);
  }
  Library library(Settings{{"leave_pinned", "0"}, {"mpool_grdma_leave_pinned", "1"}});
  fake::FakeRegistrar fake;
  EXPECT_EQ(Pool(fake, {PINRAIL_UNSET}).stats().leave_pinned, 1u);
}

TEST(GrdmaSettings, an_event_outside_of_init_and_finalize_is_harmless) {
  report(kBase, kPage);
  { Library library; }
  report(kBase, kPage);
  report(kBase, 0);
  report(UINTPTR_MAX - 5, SIZE_MAX);
}

TEST(GrdmaSettings, init_nests_and_refuses_other_settings_later) {
  Library library(Settings{{"mpool_grdma_size_limit", "8M"}});
  {
    Library same(Settings{{"mpool_grdma_size_limit", "8192K"}});
    EXPECT_EQ(same.status, PINRAIL_SUCCESS);
  }
  Library other(Settings{{"mpool_grdma_size_limit", "9M"}});
  EXPECT_EQ(other.status, PINRAIL_ERR_BAD_PARAM);
}

TEST(GrdmaSettings, unknown_names_and_incomplete_tables_are_errors) {
  Library library;
  fake::FakeRegistrar fake;
  pinrail_mpool_t* pool = nullptr;
  pinrail_registrar_choice_t choice = lend(fake);
  EXPECT_EQ(pinrail_mpool_create("nothing", &choice, nullptr, nullptr, &pool), PINRAIL_ERR_NOT_FOUND);
  pinrail_registrar_t broken = *fake.table();
  choice.table = &broken;
  broken.register_mem = nullptr;
  EXPECT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool), PINRAIL_ERR_BAD_PARAM);
  broken = *fake.table();
  broken.granularity = 3000;
  EXPECT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool), PINRAIL_ERR_BAD_PARAM);
  broken = *fake.table();
  broken.size = 8;
  EXPECT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool), PINRAIL_ERR_BAD_PARAM);
  choice.table = nullptr;
  choice.name = "nothing";
  EXPECT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pool, nullptr);
}

TEST(GrdmaStart, a_thread_that_cannot_be_made_is_named) {
  const ChildAnswer answer = answer_of([] {
    if (!refuse_system_call(SYS_clone3, EAGAIN) || !refuse_system_call(SYS_clone, EAGAIN)) return ChildAnswer{-1};
    testing::internal::CaptureStderr();
    const Library library(Settings{{"monitor", "patcher"}});
    const std::string said = testing::internal::GetCapturedStderr();
    const bool is_other = said.find("thread") == std::string::npos && said.find("patcher") != std::string::npos;
    return ChildAnswer{library.status == PINRAIL_SUCCESS, said.find("cannot start its thread") != std::string::npos,
                       is_other};
  });
  if (answer[0] == -1 || answer[2] != 0) GTEST_SKIP() << "no filter, or the monitor patcher, works here";
  EXPECT_EQ(answer, (ChildAnswer{0, 1}));
}

// What outlives a session of the library, or a fork, and means nothing in the next one: threads and what they remember,
// and handles of a pool that was destroyed by force. The components may lie at the same addresses again.

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

// F1, R10: what the child registers later may get the memory of the orphan that it has dropped.
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
