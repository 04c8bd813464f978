// SPDX-License-Identifier: BSD-3-Clause
// Each miss has one reason (grdma_reasons/Y1), and the reasons are named right.
#include <string>
#include <utility>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kLong = 64 * kPage;

class Reasons : public ::testing::Test {
 protected:
  // The counts that are not 0, "cold 2, span 1".
  static std::string of(const pinrail_mpool_stats_t& stats) {
    std::string text;
    uint64_t sum = 0;
    for (size_t i = 0; pinrail_stat_at(i) != nullptr; ++i) {
      const std::string name = pinrail_stat_at(i)->name;
      if (name.rfind("misses_", 0) != 0) continue;
      const auto* const at = reinterpret_cast<const char*>(&stats) + pinrail_stat_at(i)->offset;
      const uint64_t count = *reinterpret_cast<const uint64_t*>(at);
      sum += count;
      if (count != 0) text += (text.empty() ? "" : ", ") + name.substr(7) + " " + std::to_string(count);
    }
    EXPECT_EQ(sum, stats.misses) << "grdma_reasons/Y1";
    return text;
  }
  const Library library_{Settings{{"mpool_grdma_rights", "asked"}}};
  fake::FakeRegistrar fake_;
};

TEST_F(Reasons, the_first_request_is_cold_and_a_hit_is_no_miss) {
  const Pool pool(fake_);
  pool.use(kBase, kPage);
  pool.use(kBase, kPage);
  EXPECT_EQ(of(pool.stats()), "cold 1");
}

TEST_F(Reasons, what_is_longer_or_shifted_has_its_span_as_reason) {
  const Pool pool(fake_);
  pool.use(kBase, 2 * kPage);
  pool.use(kBase, 3 * kPage);
  pool.use(kBase + 2 * kPage, 2 * kPage);
  pool.use(kBase - 10 * kPage, 40 * kPage);
  EXPECT_EQ(of(pool.stats()), "cold 1, span 3");
}

TEST_F(Reasons, rights_are_a_reason_whether_there_are_fewer_or_others) {
  const Pool pool(fake_);
  pool.use(kBase, kPage, 1);
  pool.use(kBase, kPage, 3);  // more
  pool.use(kBase + kLong, kPage, 1);
  pool.use(kBase + kLong, kPage, 2);  // others
  EXPECT_EQ(of(pool.stats()), "cold 2, rights 2");
}

TEST_F(Reasons, what_was_unmapped_has_an_event_as_reason) {
  const Pool pool(fake_);
  for (int i = 0; i < 3; ++i) {
    pool.use(kBase, kLong);
    report(kBase + 5 * kPage, kPage);
  }
  pool.use(kBase + 5 * kPage, kPage);  // inside of what went away
  EXPECT_EQ(of(pool.stats()), "cold 1, event 3");
}

TEST_F(Reasons, what_was_held_when_it_was_unmapped_has_an_event_as_reason) {
  const Pool pool(fake_);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  report(kBase, kPage);
  pool.use(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
  EXPECT_EQ(of(pool.stats()), "cold 1, event 1");
}

TEST_F(Reasons, what_lost_its_registration_for_another_parts_sake_is_told_apart) {
  const Pool pool(fake_);
  pool.use(kBase, kLong);
  report(kBase, kPage);
  pool.use(kBase + 5 * kPage, 2 * kPage);
  EXPECT_EQ(of(pool.stats()), "cold 1, extent 1");
}

TEST_F(Reasons, what_was_evicted_is_told_also_of_a_part) {
  PoolOptions two;
  two.count_limit = 2;
  const Pool pool(fake_, two);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) pool.use(kBase + i * kLong * 2, kLong);
  }
  EXPECT_EQ(of(pool.stats()), "cold 3, evicted 3");
  pool.use(kBase + kPage, kPage);  // kBase was evicted last
  EXPECT_EQ(of(pool.stats()), "cold 3, evicted 4");
}

TEST_F(Reasons, an_eviction_is_forgotten_when_the_range_is_cached_again) {
  PoolOptions one;
  one.count_limit = 1;
  const Pool pool(fake_, one);
  pool.use(kBase, kPage);
  pool.use(kBase + kLong, kPage);
  pool.use(kBase, kPage);     // evicted
  pool.use(kBase, kPage, 3);  // not that again
  EXPECT_EQ(of(pool.stats()), "cold 2, rights 1, evicted 1");
}

TEST_F(Reasons, bypass_is_a_reason) {
  const Pool pool(fake_);
  pool.use(kBase, kPage);
  pool.use(kBase, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  EXPECT_EQ(of(pool.stats()), "cold 1, bypass 1");
}

TEST_F(Reasons, nothing_is_kept_without_leave_pinned) {
  PoolOptions never;
  never.leave_pinned = 0;
  const Pool pool(fake_, never);
  for (int i = 0; i < 3; ++i) pool.use(kBase, kPage);
  EXPECT_EQ(of(pool.stats()), "not_kept 3");
}

TEST_F(Reasons, a_limit_that_what_is_held_fills_is_a_reason) {
  PoolOptions one;
  one.count_limit = 1;
  const Pool pool(fake_, one);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  pinrail_handle_t handle{};
  EXPECT_NE(pool.reg(kBase + kLong, kPage, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(of(pool.stats()), "cold 1, full 1");
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
}

TEST_F(Reasons, a_refusal_of_the_registrar_is_a_reason) {
  const Pool pool(fake_);
  fake_.fail_register(1, PINRAIL_ERR_ERROR);
  pinrail_handle_t handle{};
  EXPECT_NE(pool.reg(kBase, kPage, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(of(pool.stats()), "refused 1");
}

TEST_F(Reasons, a_race_is_a_reason) {
  const Pool pool(fake_);
  bool has_been = false;
  fake_.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!std::exchange(has_been, true)) report(kBase, kPage);
  });
  pool.use(kBase, kPage);
  EXPECT_EQ(of(pool.stats()), "raced 1");
}

// A hundred ranges of all sizes, each with a cause of its own.
TEST_F(Reasons, a_hundred_planted_causes_are_named_right) {
  const Pool pool(fake_);
  for (uintptr_t i = 0; i < 100; ++i) pool.use(kBase + i * 0x40000000, kPage << i % 15);
  for (uintptr_t i = 0; i < 100; i += 4) report(kBase + i * 0x40000000, kPage);
  for (uintptr_t i = 0; i < 100; ++i) {
    const uintptr_t base = kBase + i * 0x40000000;
    const size_t length = kPage << i % 15;
    const pinrail_mpool_stats_t before = pool.stats();
    switch (i % 4) {
      case 0: pool.use(base, length); break;
      case 1: pool.use(base, length + kPage); break;
      case 2: pool.use(base, length, 3); break;
      default: pool.use(base, length, 1, PINRAIL_FLAG_CACHE_BYPASS); break;
    }
    const pinrail_mpool_stats_t after = pool.stats();
    EXPECT_EQ(after.misses_event - before.misses_event, i % 4 == 0 ? 1u : 0u) << i;
    EXPECT_EQ(after.misses_span - before.misses_span, i % 4 == 1 ? 1u : 0u) << i;
    EXPECT_EQ(after.misses_rights - before.misses_rights, i % 4 == 2 ? 1u : 0u) << i;
    EXPECT_EQ(after.misses_bypass - before.misses_bypass, i % 4 == 3 ? 1u : 0u) << i;
  }
  EXPECT_EQ(of(pool.stats()), "cold 100, span 25, rights 25, event 25, bypass 25");
}

TEST_F(Reasons, a_program_of_an_older_version_reads_the_figures_that_it_knows) {
  const Pool pool(fake_);
  pool.use(kBase, kPage);
  pinrail_mpool_stats_t old{};
  old.size = offsetof(pinrail_mpool_stats_t, misses_cold);
  old.misses_cold = 77;
  EXPECT_EQ(pinrail_mpool_read_stats(pool.get(), &old), PINRAIL_SUCCESS);
  EXPECT_EQ(old.misses, 1u);
  EXPECT_EQ(old.misses_cold, 77u) << "written past the end of an older struct";
}

}  // namespace
}  // namespace pinrail::test
