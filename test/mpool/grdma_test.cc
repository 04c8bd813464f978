// SPDX-License-Identifier: BSD-3-Clause
// mpool/grdma as an embedder sees it, beside what test/attack compares with a model of the rules at random: which one
// is evicted, what a registrar may not do, figures, rights, what a thread remembers of its requests, and settings.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "base/hit/recent.h"
#include "base/hit/start_hints.h"
#include "base/registration/registration.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

using Grdma = OnePool<Pool>;

TEST_F(Grdma, a_range_whose_whole_pages_leave_the_address_space_is_bad_param) {
  EXPECT_EQ(pool_->answer_to(UINTPTR_MAX - 10, 10), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_->register_calls(), 0u);
}

TEST_F(Grdma, the_evictor_passes_by_what_was_hit) {
  make_pool({}, at_most(3));
  for (uintptr_t i = 1; i <= 3; ++i) pool_->use(kBase * i, kPage);
  pool_->use(kBase * 4, kPage);  // evicts 1
  EXPECT_FALSE(pool_->has(kBase * 1, kPage));
  pool_->use(kBase * 2, kPage);  // 3 is the oldest now
  pool_->use(kBase * 5, kPage);
  EXPECT_FALSE(pool_->has(kBase * 3, kPage));
  pool_->use(kBase * 6, kPage);  // 4: 2 was used later
  EXPECT_FALSE(pool_->has(kBase * 4, kPage));
  EXPECT_TRUE(pool_->has(kBase * 2, kPage));
  EXPECT_EQ(pool_->stats().evictions, 3u);
}

// R2, E1: a victim whose place was taken is dead while the device registers what takes its place. A find or an event
// may take it out of the index meanwhile; otherwise the insert does.
TEST_F(Grdma, a_victim_is_gone_before_the_device_registers_what_takes_its_place) {
  enum class By : uint8_t { insert, find, event };
  for (const By by : {By::insert, By::find, By::event}) {
    make_pool({}, at_most(1));
    pool_->use(kBase, kPage);
    device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
      EXPECT_EQ(device_->live_count(), 0u);
      if (by == By::event) pinrail_monitor_report(reinterpret_cast<void*>(kBase), kPage);
      if (by == By::find) {
        EXPECT_FALSE(pool_->has(kBase, kPage));
      }
      std::thread([&] {
        EXPECT_EQ(pool_->answer_to(3 * kBase, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)
            << "no release is left to wait for";
      }).join();
    });
    pool_->use(2 * kBase, kPage);
    device_->on_register({});
    EXPECT_EQ(pool_->stats().indexed, 1u);
    EXPECT_TRUE(pool_->invariants_hold());
    EXPECT_TRUE(pool_->has(2 * kBase, kPage));
    EXPECT_FALSE(pool_->has(kBase, kPage));
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  }
}

// R12: what an insert displaced is deregistered one by one; an event may come before the turn of each.
TEST_F(Grdma, what_an_insert_displaced_is_in_reach_of_events_until_its_turn) {
  int calls = 0;
  device_->on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (calls++ == 0) report(reinterpret_cast<uintptr_t>(reg->base) == kBase ? kBase + 2 * kPage : kBase, kPage);
  });
  pool_->use(kBase, kPage);
  pool_->use(kBase + 2 * kPage, kPage);
  const Held large = pool_->hold(kBase, 4 * kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  device_->on_deregister({});
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(device_->deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  EXPECT_TRUE(pool_->invariants_hold());
}

// As many calls inside each other as there are dead would need more stack than a thread has.
TEST_F(Grdma, what_a_registrar_registers_while_it_deregisters_gives_back_no_others) {
  constexpr uintptr_t kMany = 64, kIts = kBase + 2 * kMany * kPage;
  for (uintptr_t i = 0; i < kMany; ++i) pool_->use(kBase + 2 * i * kPage, kPage);
  report(kBase, 2 * kMany * kPage);
  int depth = 0, deepest = 0;
  device_->on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (reinterpret_cast<uintptr_t>(reg->base) == kIts) return;
    deepest = std::max(deepest, ++depth);
    pool_->use(kIts, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
    --depth;
  });
  pool_->use(kIts, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  device_->on_deregister(nullptr);
  EXPECT_EQ(deepest, 1);
}

// R3, R5: also inside a registrar's function.
TEST_F(Grdma, what_is_cached_is_hit_during_an_eviction) {
  constexpr uintptr_t kMany = 64;
  for (uintptr_t i = 0; i < kMany; ++i) pool_->use(kBase + i * 4 * kPage, 2 * kPage);
  bool is_first = true;
  device_->on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (!std::exchange(is_first, false)) return;
    for (uintptr_t i = 0; i < kMany; ++i) {
      const uintptr_t base = kBase + i * 4 * kPage;
      if (base != reinterpret_cast<uintptr_t>(reg->base)) pool_->use(base + i % 2 * kPage, kPage);
    }
  });
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  device_->on_deregister({});
  EXPECT_EQ(device_->register_calls(), kMany);
  EXPECT_EQ(pool_->stats().evictions, 1u);
}

// It would wait for the call that it is made in, or return to a registrar that is closed.
TEST_F(Grdma, a_pool_is_not_destroyed_inside_a_registrar) {
  std::vector<pinrail_status_t> inside;
  const auto destroy = [&] {
    for (const uint32_t flags : {0u, uint32_t{PINRAIL_DESTROY_FORCE}})
      inside.push_back(pinrail_mpool_destroy(pool_->get(), flags));
    inside.push_back(pinrail_finalize());
  };
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) { destroy(); });
  pool_->use(kBase, kPage);
  device_->on_register(nullptr);
  device_->on_deregister([&](const pinrail_registration_t*, pinrail_reason_t) { destroy(); });
  ASSERT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  device_->on_deregister(nullptr);
  EXPECT_EQ(inside, std::vector<pinrail_status_t>(6, PINRAIL_ERR_BUSY));
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
}

TEST_F(Grdma, another_limit_for_a_cache_that_exists_is_bad_param) {
  Pool first(*device_, {1, 1 << 20, PINRAIL_UNSET, 0, "limits"});
  Pool other(*device_, {1, 2 << 20, PINRAIL_UNSET, 0, "limits"});
  EXPECT_EQ(other.status, PINRAIL_ERR_BAD_PARAM);
  Pool same(*device_, {1, 1 << 20, PINRAIL_UNSET, 0, "limits"});
  EXPECT_EQ(same.status, PINRAIL_SUCCESS);
}

TEST_F(Grdma, pinned_bytes_counts_shared_pages_once) {
  pool_->use(kBase, 4 * kPage);
  pool_->use(kBase + 2 * kPage, 4 * kPage);
  EXPECT_EQ(pool_->stats().registered_bytes, 8 * kPage);
  EXPECT_EQ(pool_->stats().pinned_bytes, 6 * kPage);
}

TEST_F(Grdma, the_chunk_iterator_cuts_at_multiples_of_max_reg_size) {
  const uintptr_t start = 0x40000000 - 100;
  pinrail_chunks_t chunks;
  ASSERT_EQ(pinrail_chunks_begin(pool_->get(), reinterpret_cast<void*>(start), (4 << 20) + 200, &chunks),
            PINRAIL_SUCCESS);
  std::vector<std::pair<uintptr_t, size_t>> pieces;
  void* addr;
  size_t length;
  while (pinrail_chunks_next(&chunks, &addr, &length) == PINRAIL_SUCCESS) {
    pieces.emplace_back(reinterpret_cast<uintptr_t>(addr), length);
  }
  const std::vector<std::pair<uintptr_t, size_t>> expected = {
      {start, 100}, {0x40000000, 2 << 20}, {0x40200000, 2 << 20}, {0x40400000, 100}};
  EXPECT_EQ(pieces, expected);
}

TEST_F(Grdma, the_listed_figures_name_fields_of_the_struct) {
  size_t count = 0;
  for (; pinrail_stat_at(count) != nullptr; ++count) {
    EXPECT_LE(pinrail_stat_at(count)->offset + sizeof(uint64_t), sizeof(pinrail_mpool_stats_t));
  }
  EXPECT_EQ(count, sizeof(pinrail_mpool_stats_t) / sizeof(uint64_t) - 2)
      << "all but size and the two numbers of 32 bits";
}

// With which rights a range is registered.

// R4: as of memory that may only be read. The refusal is remembered for the neighbourhood until an event ends what is
// registered there, because other memory may follow.
TEST_F(Grdma, a_device_that_refuses_all_rights_gets_what_was_asked_and_is_not_asked_again_there) {
  pool_->use(3 * kBase, kPage);
  device_->fail_register(1, PINRAIL_ERR_PERM);
  EXPECT_EQ(pool_->hold(kBase, kPage, 2).reg->rights, 2u);
  EXPECT_EQ(device_->register_calls(), 3u);
  pool_->use(kBase + kPage, kPage, 2);
  EXPECT_EQ(device_->register_calls(), 4u);
  EXPECT_EQ(pool_->hold(2 * kBase, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK}) << "elsewhere";
  EXPECT_EQ(pool_->hold(2 * kBase, kPage, 2, PINRAIL_FLAG_CACHE_BYPASS).reg->rights, 2u)
      << "it serves no other request";
  report(kBase, kPage);
  EXPECT_EQ(pool_->hold(kBase, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK}) << "other memory";
}

TEST_F(Grdma, a_device_that_is_full_once_has_refused_no_rights) {
  device_->fail_register(1, PINRAIL_ERR_OUT_OF_RESOURCE);
  pool_->use(kBase, kPage);
  pool_->use(kBase + kPage, kPage);
  EXPECT_EQ(pool_->hold(kBase + kPage, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK});
  EXPECT_EQ(device_->register_calls(), 3u);
}

// R3: a request of an EXACT pool names the rights of what answers it.
TEST_F(Grdma, rights_that_a_registrar_adds_do_not_keep_an_exact_pool_from_hits) {
  make_pool({}, {1, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_POOL_EXACT});
  device_->on_register([](const pinrail_register_request_t&, pinrail_registration_t* reg) { reg->rights |= 2; });
  for (int i = 0; i < 3; ++i) pool_->use(kBase, kPage, 4);
  device_->on_register(nullptr);
  EXPECT_EQ(device_->register_calls(), 1u);
}

TEST(GrdmaRights, a_device_without_atomics_refuses_one_call) {
  const Library library;
  fake::FakeRegistrar fake(fake::options_with(&fake::FakeOptions::refused_rights, PINRAIL_ACCESS_REMOTE_ATOMIC));
  Pool pool(fake);
  for (uintptr_t i = 1; i <= 4; ++i) pool.use(i * kBase, kPage, 2);
  EXPECT_EQ(fake.register_calls(), 5u);
  EXPECT_EQ(fake.live()[3].rights, 7u);
}

// What a thread asked for lately answers requests in the very words, and no others, as long as it is alive.

class Recent : public ::testing::Test {
 protected:
  // Asked for often enough to be remembered.
  static void make_recent(const Pool& pool, uintptr_t base) {
    for (int i = 0; i < 4; ++i) pool.use(base, kPage);
  }
  const Library library_{{{"mpool_grdma_rights", "asked"}}};
  fake::FakeRegistrar fake_;
  const Pool pool_{fake_};
};

// Otherwise a program would cause other calls of the device in each run.
TEST_F(Recent, which_requests_share_an_entry_does_not_depend_on_where_the_pool_lies) {
  RecentRequests table{};
  pinrail_thread_t thread{};
  thread.recent = &table;
  const auto* const pool = reinterpret_cast<const void*>(0x55d5c0a81240);
  const auto* const other = reinterpret_cast<const void*>(0x7f31e2c3bf80);
  const auto entry = [&](const void* of, uintptr_t addr) { return recent::entry_for(&thread, of, addr); };
  size_t shared = 0;
  for (uintptr_t a = kBase, i = 0; i < 2000; ++i, a += 0x2f340) {
    for (uintptr_t b = kBase, j = 0; j < i; ++j, b += 0x2f340) {
      const bool is_shared = entry(pool, a) == entry(pool, b);
      ASSERT_EQ(is_shared, entry(other, a) == entry(other, b)) << a << " and " << b;
      shared += is_shared ? 1 : 0;
      const auto line = [](const void* of, uintptr_t addr) { return start_hints::hash_of(of, addr) & 511; };
      ASSERT_EQ(line(pool, a) == line(pool, b), line(other, a) == line(other, b)) << a << " and " << b;
    }
  }
  EXPECT_GT(shared, size_t{0});
}

// A part of a larger buffer. No hint of starts leads to it: it is searched for in the index once, and then it is
// remembered (test/stress/cost.sh).
TEST_F(Recent, a_request_inside_a_registration_ends_where_that_ends) {
  const pinrail_handle_t whole = pool_.must(kBase, 64 * kPage);
  constexpr uintptr_t kPart = kBase + 7 * kPage + 100;
  constexpr size_t kLongest = 57 * kPage - 100;
  for (uint64_t i = 1; i <= 10; ++i) {
    const pinrail_handle_t handle = pool_.must(kPart, i < 5 ? kPage : kLongest);
    EXPECT_EQ(handle.reg, whole.reg) << i;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS) << i;
    EXPECT_EQ(pool_.stats().hits, i);
  }
  EXPECT_EQ(pool_.answer_to(kPart, 0), PINRAIL_ERR_BAD_PARAM);
  EXPECT_NE(pool_.must(kPart, kLongest + 1).reg, whole.reg);
  EXPECT_EQ(pool_.stats().misses, 2u);
  report(kBase, kPage);
  const pinrail_handle_t fresh = pool_.must(kPart, kPage);
  EXPECT_NE(fresh.reg, whole.reg) << "an event took the whole";
  EXPECT_TRUE(pool_.invariants_hold());
}

// More than a thread has entries for: most share one with others.
TEST_F(Recent, many_buffers_in_turns_and_one_again_and_again) {
  constexpr uintptr_t kBuffers = 3000;
  for (int round = 0; round < 4; ++round) {
    for (uintptr_t i = 0; i < kBuffers; ++i) {
      for (const uintptr_t base : {kBase + i * 3 * kPage, kBase}) {
        const pinrail_handle_t handle = pool_.must(base, kPage);
        EXPECT_EQ(handle.reg->base, reinterpret_cast<void*>(base));
        drop(handle);
      }
    }
  }
  EXPECT_EQ(fake_.register_calls(), kBuffers);
  EXPECT_EQ(pool_.stats().hits, 4 * 2 * kBuffers - kBuffers);
}

// Addresses that share an entry, and one that looks like what is noted of a request that was made once.
TEST_F(Recent, an_address_is_not_taken_for_another_one) {
  constexpr uintptr_t kOther = kBase + (uintptr_t{1} << 44);
  make_recent(pool_, kBase);
  for (int i = 0; i < 2; ++i) pool_.use(kOther, kPage);
  for (const uintptr_t addr : {~kOther, kOther ^ 64, ~kBase, kBase ^ 64, kOther, kBase}) {
    for (int i = 0; i < 4; ++i) {
      const pinrail_handle_t handle = pool_.must(addr, 1);
      const auto base = reinterpret_cast<uintptr_t>(handle.reg->base);
      EXPECT_EQ(base, addr / kPage * kPage) << std::hex << addr;
      drop(handle);
    }
  }
}

// recent/Q1. The successor may lie in the same place, and have its registrations in the same memory.
TEST_F(Recent, a_pool_that_is_gone_is_not_remembered_when_another_thread_has_filled_its_successor) {
  for (int i = 0; i < 20; ++i) {
    fake::FakeRegistrar device;
    const Pool pool(device);
    std::thread([&] { pool.use(kBase, kPage); }).join();
    const pinrail_handle_t handle = pool.must(kBase, kPage);
    EXPECT_EQ(handle.generation, generation_of(handle.reg)) << i;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS) << i;
    make_recent(pool, kBase);
    EXPECT_EQ(device.register_calls(), 1u) << i;
  }
}

// A place where nothing is remembered is not the answer to a request of nothing, with no bit set or with every one.
TEST_F(Recent, an_empty_place_answers_nothing) {
  make_recent(pool_, kBase);  // from now on the thread has places
  pinrail_handle_t handle{};
  EXPECT_EQ(pinrail_mpool_register(nullptr, nullptr, 0, 0, 0, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_mpool_register(nullptr, nullptr, 0, UINT32_MAX, UINT32_MAX, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(handle.reg, nullptr);
}

// What parameters set, what does not work before pinrail_init() or after pinrail_finalize(), and what means nothing in
// a forked child.

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

// No event would end it, so its holder cannot know that it went stale.
TEST(GrdmaSettings, without_a_monitor_what_is_held_answers_no_other_call) {
  Library library(Settings{{"monitor", "none"}});
  fake::FakeRegistrar fake;
  Pool pool(fake, {PINRAIL_UNSET});
  void* const at = reinterpret_cast<void*>(kBase);
  for (const uint32_t flags : {0u, uint32_t{PINRAIL_FLAG_PERSISTENT}}) {
    pinrail_handle_t held, other;
    ASSERT_EQ(pinrail_mpool_register(pool.get(), at, kPage, 1, flags, &held), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_find(pool.get(), at, kPage, 1, &other), PINRAIL_ERR_NOT_FOUND);
    pool.use(kBase, kPage);
    drop(held);
  }
  EXPECT_EQ(fake.register_calls(), 4u);
  EXPECT_EQ(pool.stats().misses_not_kept, 4u);
  const pinrail_range_t range = {at, kPage};
  EXPECT_EQ(pinrail_mpool_prepin(pool.get(), &range, 1, 1, nullptr, nullptr), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(fake.live_count(), 0u);
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

// F1, R10: what the child registers later may get the memory of the orphan that it has dropped.
TEST(GrdmaSession, what_a_child_holds_is_held_although_it_has_dropped_an_orphan_of_its_parent) {
  Library library;
  fake::FakeRegistrar fake;
  pinrail_handle_t orphan{};
  {
    Pool pool(fake);
    orphan = pool.must(kBase, kPage);
    ASSERT_EQ(pool.close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  }
  expect_success_in_child([&] {
    Library of_child;
    if (pinrail_mpool_deregister(orphan) != PINRAIL_SUCCESS) return 1;
    fake::FakeRegistrar other_fake;
    Pool pool(other_fake, at_most(1));
    pool.must(kBase + kPage, kPage);
    pinrail_handle_t other{};
    if (pool.reg(kBase + 500 * kPage, kPage, &other) == PINRAIL_SUCCESS) return 2;
    return pool.has(kBase + kPage, kPage) ? 0 : 3;
  });
  drop(orphan);
}

// R10: a registrar's function may drop references of the pool that is being destroyed, those of what it returns and of
// what is still to come.
TEST(GrdmaSession, a_registrar_may_drop_what_is_held_of_a_pool_that_is_destroyed_by_force) {
  const Library library;
  for (const PoolOptions& options : {PoolOptions{}, not_kept()}) {
    for (const int own : {0, 1}) {
      fake::FakeRegistrar fake;
      Pool pool(fake, options);
      std::vector<pinrail_handle_t> held;
      for (uintptr_t i = 0; i < 4; ++i) held.push_back(pool.must(kBase + 2 * i * kPage, kPage));
      fake.on_deregister([&](const pinrail_registration_t* reg, pinrail_reason_t) {
        for (size_t i = 0; i < held.size(); ++i) {
          if ((held[i].reg == reg) != (own != 0)) continue;
          drop(held[i]);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
          return;
        }
      });
      EXPECT_EQ(pool.close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
      EXPECT_EQ(fake.deregister_calls(), 4u);
      EXPECT_EQ(fake.live_count(), 0u);
      fake.on_deregister({});
      for (const pinrail_handle_t handle : held) drop(handle);
    }
  }
}

// A child's first call is one as well: what is called from within it is refused.
TEST(GrdmaSession, a_call_within_the_first_call_of_a_child_is_refused) {
  Library library;
  const fake::FakeRegistrar fake;
  const Pool pool(fake);
  expect_success_in_child([&] {
    static pinrail_status_t within = PINRAIL_SUCCESS;
    alarm(60);
    pinrail_set_message_function(
        [](void* of_parent, int, const char*, const char*) {
          within = pinrail_mpool_evict(static_cast<pinrail_mpool_t*>(of_parent));
        },
        pool.get());
    const Library of_child(Settings{{"mpool", "^nonsense"}});  // says that there is none of that name
    return within == PINRAIL_ERR_BUSY ? 0 : 1;
  });
}

}  // namespace
}  // namespace pinrail::test
