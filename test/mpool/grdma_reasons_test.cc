// SPDX-License-Identifier: BSD-3-Clause
// Each miss has one reason, and it is the right one.
#include <pinrail/listing.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
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
    EXPECT_EQ(sum, stats.misses);
    return text;
  }
  const Library library_{Settings{{"mpool_grdma_rights", "asked"}}};
  fake::FakeRegistrar fake_;
};

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

// However long it was: 2^49 bytes are more than the blocks of the last class.
TEST_F(Reasons, what_was_unmapped_has_an_event_as_reason) {
  for (const size_t length : {kLong, size_t{1} << 49}) {
    const Pool pool(fake_);
    for (int i = 0; i < 3; ++i) {
      pool.use(kBase, length);
      report(kBase + 5 * kPage, kPage);
    }
    pool.use(kBase + 5 * kPage, kPage);  // inside of what went away
    EXPECT_EQ(of(pool.stats()), "cold 1, event 3") << length;
  }
}

TEST_F(Reasons, what_was_held_when_it_was_unmapped_has_an_event_as_reason) {
  const Pool pool(fake_);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  report(kBase, kPage);
  pool.use(kBase, kPage);
  drop(held);
  EXPECT_EQ(of(pool.stats()), "cold 1, event 1");
}

TEST_F(Reasons, what_was_evicted_is_told_also_of_a_part) {
  const Pool pool(fake_, at_most(2));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) pool.use(kBase + i * kLong * 2, kLong);
  }
  EXPECT_EQ(of(pool.stats()), "cold 3, evicted 3");
  pool.use(kBase + kPage, kPage);  // kBase was evicted last
  EXPECT_EQ(of(pool.stats()), "cold 3, evicted 4");
}

TEST_F(Reasons, an_eviction_is_forgotten_when_the_range_is_cached_again) {
  const Pool pool(fake_, at_most(1));
  pool.use(kBase, kPage);
  pool.use(kBase + kLong, kPage);
  pool.use(kBase, kPage);     // evicted
  pool.use(kBase, kPage, 3);  // not that again
  EXPECT_EQ(of(pool.stats()), "cold 2, rights 1, evicted 1");
}

// A hundred pools, each with one planted cause in memory of another size and place.
TEST_F(Reasons, a_hundred_planted_causes_are_named_right) {
  struct Cause {
    const char* named;
    void (*plant)(fake::FakeRegistrar*, const Pool&, uintptr_t base, size_t length);
    PoolOptions options;
  };
  const Cause causes[] = {
      {"cold 2",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base + 2 * length, length); },
       {}},
      {"cold 1, span 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base, length + kPage); },
       {}},
      {"cold 1, span 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base - kPage, length); },
       {}},
      {"cold 1, rights 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base, length, 3); },
       {}},
      {"cold 1, event 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) {
         report(base + length - kPage, kPage);
         pool.use(base, length);
       },
       {}},
      {"cold 1, extent 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) {
         report(base, kPage);
         pool.use(base + kPage, length - kPage);
       },
       {}},
      {"cold 2, evicted 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) {
         pool.use(base + 2 * length, length);
         pool.use(base, length);
       },
       at_most(1)},
      {"cold 1, bypass 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) {
         pool.use(base, length, 1, PINRAIL_FLAG_CACHE_BYPASS);
       },
       {}},
      {"cold 1, full 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) {
         const pinrail_handle_t held = pool.must(base, length);
         pinrail_handle_t refused{};
         EXPECT_NE(pool.reg(base + 2 * length, length, &refused), PINRAIL_SUCCESS);
         drop(held);
       },
       at_most(1)},
      {"cold 1, refused 1",
       [](fake::FakeRegistrar* fake, const Pool& pool, uintptr_t base, size_t length) {
         fake->fail_register(1, PINRAIL_ERR_ERROR);
         EXPECT_NE(pool.answer_to(base + 2 * length, length), PINRAIL_SUCCESS);
       },
       {}},
      {"cold 1, raced 1",
       [](fake::FakeRegistrar* fake, const Pool& pool, uintptr_t base, size_t length) {
         bool has_been = false;
         fake->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
           if (!std::exchange(has_been, true)) report(base + 2 * length, kPage);
         });
         pool.use(base + 2 * length, length);
         fake->on_register({});
       },
       {}},
      {"not_kept 2", [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base, length); },
       not_kept()},
  };
  for (uintptr_t i = 0; i < 100; ++i) {
    const Cause& cause = causes[i % std::size(causes)];
    const uintptr_t base = kBase + i * 0x40000000;
    const size_t length = 2 * kPage << i % 13;
    const Pool pool(fake_, cause.options);
    pool.use(base, length);
    cause.plant(&fake_, pool, base, length);
    EXPECT_EQ(of(pool.stats()), cause.named) << i;
  }
}

// Under the monitors of every program: writes to a file on disk that bypass the page cache are seen by none.
TEST(ReasonsUnderMonitors, memory_that_no_monitor_covers_is_named_in_each_pool) {
  const Library library(Settings{{"monitor", "patcher"}});
  if (pinrail_monitors_at_work()[0] == 0) GTEST_SKIP() << "monitor patcher does not work here";
  auto kind = sized<pinrail_memory_kind_t>();
  bool is_kept = true;
  for (size_t i = 0; pinrail_memory_kind_at(i, &kind) == PINRAIL_SUCCESS; ++i) {
    if (std::string(kind.name) == "file on disk") is_kept = kind.is_kept != 0;
  }
  char path[] = "reasons.XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  unlink(path);
  struct statfs system {};
  constexpr decltype(system.f_type) kMemory = 0x01021994;  // tmpfs
  ASSERT_EQ(ftruncate(file, kPage) + fstatfs(file, &system), 0);
  void* const memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(memory, MAP_FAILED);
  if (is_kept || system.f_type == kMemory) GTEST_SKIP() << "this file is not on a disk, or is covered";
  const fake::FakeRegistrar fake;
  for (int i = 0; i < 5; ++i) {
    const Pool pool(fake);
    pool.use(reinterpret_cast<uintptr_t>(memory), kPage);
    EXPECT_EQ(pool.stats().misses_uncovered, 1u);
  }
  munmap(memory, kPage);
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
