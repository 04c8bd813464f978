// SPDX-License-Identifier: BSD-3-Clause
// What a thread asked for lately answers requests in the very words, and no others, as long as it is alive; and with
// which rights and traits a range is registered.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/hit/recent.h"
#include "base/hit/start_hints.h"
#include "base/registration/registration.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

class Recent : public ::testing::Test {
 protected:
  // Asked for often enough to be remembered.
  static void make_recent(const Pool& pool, uintptr_t base, size_t length) {
    for (int i = 0; i < 4; ++i) pool.use(base, length);
  }
  const Library library_{{{"mpool_grdma_rights", "asked"}}};
  fake::FakeRegistrar fake_;
};

TEST_F(Recent, a_longer_range_is_another_question) {
  const Pool pool(fake_);
  make_recent(pool, kBase, kPage);
  const Held longer = pool.hold(kBase, 2 * kPage);
  EXPECT_EQ(longer.reg->length, 2 * kPage);
  EXPECT_EQ(fake_.register_calls(), 2u);
}

TEST_F(Recent, other_rights_are_another_question) {
  const Pool pool(fake_);
  make_recent(pool, kBase, kPage);
  const Held wider = pool.hold(kBase, kPage, 3);
  EXPECT_EQ(wider.reg->rights, 3u);
  EXPECT_EQ(fake_.register_calls(), 2u);
}

TEST_F(Recent, a_bypass_is_another_question) {
  const Pool pool(fake_);
  make_recent(pool, kBase, kPage);
  pool.use(kBase, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  EXPECT_EQ(fake_.register_calls(), 2u);
}

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

TEST_F(Recent, another_pool_is_another_question) {
  const Pool pool(fake_);
  fake::FakeRegistrar other_device;
  const Pool other(other_device);
  make_recent(pool, kBase, kPage);
  const Held handle = other.hold(kBase, kPage);
  EXPECT_EQ(handle.reg->pool, other.get());
  EXPECT_EQ(other_device.register_calls(), 1u);
}

// A part of a larger buffer. No hint of starts leads to it: it is searched for in the index once, and then it is
// remembered (test/stress/cost.sh).
TEST_F(Recent, a_request_inside_a_registration_ends_where_that_ends) {
  const Pool pool(fake_);
  const pinrail_handle_t whole = pool.must(kBase, 64 * kPage);
  constexpr uintptr_t kPart = kBase + 7 * kPage + 100;
  constexpr size_t kLongest = 57 * kPage - 100;
  for (uint64_t i = 1; i <= 10; ++i) {
    const pinrail_handle_t handle = pool.must(kPart, i < 5 ? kPage : kLongest);
    EXPECT_EQ(handle.reg, whole.reg) << i;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS) << i;
    EXPECT_EQ(pool.stats().hits, i);
  }
  EXPECT_EQ(pool.answer_to(kPart, 0), PINRAIL_ERR_BAD_PARAM);
  EXPECT_NE(pool.must(kPart, kLongest + 1).reg, whole.reg);
  EXPECT_EQ(pool.stats().misses, 2u);
  report(kBase, kPage);
  const pinrail_handle_t fresh = pool.must(kPart, kPage);
  EXPECT_NE(fresh.reg, whole.reg) << "an event took the whole";
  EXPECT_TRUE(pool.invariants_hold());
}

// More than a thread has entries for: most share one with others.
TEST_F(Recent, many_buffers_in_turns_and_one_again_and_again) {
  const Pool pool(fake_);
  constexpr uintptr_t kBuffers = 3000;
  for (int round = 0; round < 4; ++round) {
    for (uintptr_t i = 0; i < kBuffers; ++i) {
      for (const uintptr_t base : {kBase + i * 3 * kPage, kBase}) {
        const pinrail_handle_t handle = pool.must(base, kPage);
        EXPECT_EQ(handle.reg->base, reinterpret_cast<void*>(base));
        drop(handle);
      }
    }
  }
  EXPECT_EQ(fake_.register_calls(), kBuffers);
  EXPECT_EQ(pool.stats().hits, 4 * 2 * kBuffers - kBuffers);
}

// Addresses that share an entry, and one that looks like what is noted of a request that was made once.
TEST_F(Recent, an_address_is_not_taken_for_another_one) {
  const Pool pool(fake_);
  constexpr uintptr_t kOther = kBase + (uintptr_t{1} << 44);
  make_recent(pool, kBase, kPage);
  for (int i = 0; i < 2; ++i) pool.use(kOther, kPage);
  for (const uintptr_t addr : {~kOther, kOther ^ 64, ~kBase, kBase ^ 64, kOther, kBase}) {
    for (int i = 0; i < 4; ++i) {
      const pinrail_handle_t handle = pool.must(addr, 1);
      const auto base = reinterpret_cast<uintptr_t>(handle.reg->base);
      EXPECT_EQ(base, addr / kPage * kPage) << std::hex << addr;
      drop(handle);
    }
  }
}

TEST_F(Recent, a_pool_that_is_gone_answers_nothing_though_its_successor_may_stand_at_its_place) {
  for (int i = 0; i < 20; ++i) {
    fake::FakeRegistrar device;
    const Pool pool(device);
    make_recent(pool, kBase, kPage);
    EXPECT_EQ(device.register_calls(), 1u) << i;
    EXPECT_EQ(pool.stats().misses, 1u) << i;
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
    make_recent(pool, kBase, kPage);
    EXPECT_EQ(device.register_calls(), 1u) << i;
  }
}

TEST_F(Recent, what_an_event_took_is_a_miss_and_is_remembered_anew) {
  const Pool pool(fake_);
  for (uint64_t i = 1; i <= 5; ++i) {
    make_recent(pool, kBase, kPage);
    EXPECT_EQ(pool.stats().misses, i);
    report(kBase, kPage);
  }
  EXPECT_TRUE(pool.invariants_hold());
}

// The hint is the same as before: another registration is in the same memory.
TEST_F(Recent, what_another_thread_registered_anew_is_not_taken_for_the_old_one) {
  const Pool pool(fake_);
  for (uint64_t i = 1; i <= 20; ++i) {
    make_recent(pool, kBase, kPage);
    report(kBase, kPage);
    ASSERT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    std::thread([&] { pool.use(kBase, kPage); }).join();
    const pinrail_handle_t handle = pool.must(kBase, kPage);
    EXPECT_EQ(handle.generation, generation_of(handle.reg)) << i;
    EXPECT_TRUE(fake_.is_live(handle.reg)) << i;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS) << i;
  }
  EXPECT_EQ(pool.stats().misses, 21u);
  EXPECT_TRUE(pool.invariants_hold());
}

TEST_F(Recent, what_was_evicted_is_a_miss) {
  const Pool pool(fake_, {1, PINRAIL_UNSET, 1});
  make_recent(pool, kBase, kPage);
  pool.use(2 * kBase, kPage);
  pool.use(kBase, kPage);
  EXPECT_EQ(pool.stats().misses, 3u);
  EXPECT_EQ(fake_.live_count(), 1u);
}

TEST_F(Recent, wrong_arguments_stay_wrong) {
  const Pool pool(fake_);
  make_recent(pool, kBase, kPage);
  pinrail_handle_t handle{};
  EXPECT_EQ(pool.reg(kBase, kPage, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.reg(kBase, 0, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.reg(kBase, SIZE_MAX, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.reg(kBase, kPage, &handle, 0x100), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.reg(kBase, kPage, &handle, 1, 0x80), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(handle.reg, nullptr);
}

// A place where nothing is remembered is not the answer to a request of nothing, with no bit set or with every one.
TEST_F(Recent, an_empty_place_answers_nothing) {
  const Pool pool(fake_);
  make_recent(pool, kBase, kPage);  // from now on the thread has places
  pinrail_handle_t handle{};
  EXPECT_EQ(pinrail_mpool_register(nullptr, nullptr, 0, 0, 0, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_mpool_register(nullptr, nullptr, 0, UINT32_MAX, UINT32_MAX, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(handle.reg, nullptr);
}

// mpool/grdma: with which rights and traits a range is registered, and what that answers.

class GrdmaRights : public ::testing::Test {
 protected:
  explicit GrdmaRights(const Settings& settings = {}) : library_(settings) {}
  void TearDown() override { EXPECT_EQ(fake_.violations(), std::vector<std::string>{}); }
  const Library library_;
  fake::FakeRegistrar fake_;
};

// R4: a miss registers with all rights, so that one registration answers requests for any.
TEST_F(GrdmaRights, one_registration_serves_all_rights) {
  Pool pool(fake_);
  for (uint32_t rights = 0; rights <= PINRAIL_RIGHTS_MASK; ++rights) pool.use(kBase, kPage, rights);
  EXPECT_EQ(fake_.register_calls(), 1u);
  EXPECT_EQ(fake_.live()[0].rights, uint32_t{PINRAIL_RIGHTS_MASK});
}

TEST_F(GrdmaRights, an_exact_pool_registers_with_the_rights_of_the_request) {
  Pool pool(fake_, {1, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_POOL_EXACT});
  EXPECT_EQ(pool.must(kBase, kPage, 2).reg->rights, 2u);
}

TEST_F(GrdmaRights, what_is_not_cached_has_the_rights_of_the_request) {
  Pool pool(fake_);
  EXPECT_EQ(pool.must(kBase, kPage, 2, PINRAIL_FLAG_CACHE_BYPASS).reg->rights, 2u);
}

class GrdmaAsked : public GrdmaRights {
 protected:
  GrdmaAsked() : GrdmaRights({{"mpool_grdma_rights", "asked"}}) {}
};

TEST_F(GrdmaAsked, other_rights_are_registered_beside_and_neither_displaces_the_other) {
  Pool pool(fake_);
  for (int i = 0; i < 3; ++i) {
    pool.use(kBase, kPage, 1);
    pool.use(kBase, kPage, 2);
  }
  EXPECT_EQ(fake_.register_calls(), 2u);
}

TEST_F(GrdmaAsked, more_rights_make_a_registration_that_displaces_the_narrow_one) {
  Pool pool(fake_);
  pool.use(kBase, 2 * kPage, 1);
  const pinrail_handle_t wide = pool.must(kBase, 2 * kPage, 3);
  EXPECT_EQ(wide.reg->rights, 3u);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 1u) << "the dominated one was idle, so it is gone";
  EXPECT_EQ(pool.must(kBase, 1, 3).reg, wide.reg);
}

TEST_F(GrdmaAsked, a_narrow_one_that_is_held_lives_until_it_is_released) {
  Pool pool(fake_);
  const pinrail_handle_t narrow = pool.must(kBase, 2 * kPage, 1);
  const pinrail_handle_t wide = pool.must(kBase, 2 * kPage, 3);
  EXPECT_TRUE(fake_.is_live(narrow.reg));
  EXPECT_EQ(pool.must(kBase, 1, 1).reg, wide.reg);
  drop(narrow);
  EXPECT_EQ(fake_.live_count(), 1u);
}

TEST_F(GrdmaAsked, an_old_one_that_reaches_further_is_kept_beside_the_wider_one) {
  Pool pool(fake_);
  pool.use(kBase, 4 * kPage, 1);
  pool.use(kBase, 2 * kPage, 2);
  EXPECT_EQ(fake_.live_count(), 2u);
  EXPECT_TRUE(pool.has(kBase + 3 * kPage, kPage, 1));
  EXPECT_FALSE(pool.has(kBase + 3 * kPage, kPage, 2));
}

// R4: as of memory that may only be read. The refusal is remembered for the neighbourhood until an event ends what is
// registered there, because other memory may follow.
TEST_F(GrdmaRights, a_device_that_refuses_all_rights_gets_what_was_asked_and_is_not_asked_again_there) {
  Pool pool(fake_);
  pool.use(3 * kBase, kPage);
  fake_.fail_register(1, PINRAIL_ERR_PERM);
  const pinrail_handle_t handle = pool.must(kBase, kPage, 2);
  EXPECT_EQ(handle.reg->rights, 2u);
  EXPECT_EQ(fake_.register_calls(), 3u);
  pool.use(kBase + kPage, kPage, 2);
  EXPECT_EQ(fake_.register_calls(), 4u);
  EXPECT_EQ(pool.must(2 * kBase, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK}) << "elsewhere";
  report(kBase, kPage);
  EXPECT_EQ(pool.must(kBase, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK}) << "other memory";
}

TEST(GrdmaRefusing, a_device_without_atomics_refuses_one_call) {
  fake::FakeOptions options;
  options.refused_rights = PINRAIL_ACCESS_REMOTE_ATOMIC;
  const Library library;
  fake::FakeRegistrar fake(options);
  Pool pool(fake);
  for (uintptr_t i = 1; i <= 4; ++i) pool.use(i * kBase, kPage, 2);
  EXPECT_EQ(fake.register_calls(), 5u);
  EXPECT_EQ(fake.live()[3].rights, 7u);
}

TEST_F(GrdmaRights, traits_never_mix) {
  Pool pool(fake_);
  pool.use(kBase, kPage, 1 | PINRAIL_TRAIT_RELAXED_ORDERING);
  EXPECT_FALSE(pool.has(kBase, kPage, 1));
  EXPECT_TRUE(pool.has(kBase, kPage, 1 | PINRAIL_TRAIT_RELAXED_ORDERING));
}

}  // namespace
}  // namespace pinrail::test
