// SPDX-License-Identifier: BSD-3-Clause
// Each miss has one reason, and it is the right one; a pool records what it did lately, and says why a request found no
// room.
#include <pinrail/events.h>
#include <pinrail/listing.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "test/support/files.h"
#include "test/support/library.h"
#include "test/support/threads.h"

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
      {"cold 1, span 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base - kPage, length + 2 * kPage); },
       {}},
      {"cold 1, rights 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base, length, 3); },
       {}},
      {"cold 1, rights 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) { pool.use(base, length, 2); },
       {}},
      {"cold 1, event 1",
       [](auto*, const Pool& pool, uintptr_t base, size_t length) {
         const Held held = pool.hold(base, length);
         report(base, kPage);
         pool.use(base, length);
       },
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

// A pool records what it did lately, and says why a request found no room.

// A message that comes once a second goes by the seconds of this clock.
void wait_for_next_second() {
  timespec next{};
  clock_gettime(CLOCK_MONOTONIC, &next);
  next = {next.tv_sec + 1, 0};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr);
}

// The events of the pool from this number on; *next goes on.
std::vector<pinrail_mpool_event_t> read_events(const Pool& pool, uint64_t* next) {
  std::vector<pinrail_mpool_event_t> events(1 << 13);
  events[0].size = sizeof(events[0]);
  size_t count = 0;
  EXPECT_EQ(pinrail_mpool_events(pool.get(), events.data(), events.size(), next, &count), PINRAIL_SUCCESS);
  events.resize(count);
  return events;
}
std::vector<pinrail_mpool_event_t> all_events(const Pool& pool) {
  uint64_t next = 0;
  return read_events(pool, &next);
}

class Events : public ::testing::Test {
 protected:
  fake::FakeRegistrar fake_;
};

TEST_F(Events, a_registrations_life_is_recorded_in_its_order) {
  const Library library;
  const Pool pool(fake_);
  pool.use(kBase, 2 * kPage);
  pool.use(kBase, 2 * kPage);  // a hit leaves no event
  report(kBase + kPage, kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  const std::vector<pinrail_mpool_event_t> events = all_events(pool);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, uint32_t{PINRAIL_EVENT_MISS});
  EXPECT_EQ(events[0].reason, uint32_t{PINRAIL_MISS_COLD});
  EXPECT_EQ(events[0].base, kBase);
  EXPECT_EQ(events[0].length, 2 * kPage);
  EXPECT_EQ(events[0].status, PINRAIL_SUCCESS);
  EXPECT_NE(events[0].time_ns, 0u);
  EXPECT_EQ(events[1].kind, uint32_t{PINRAIL_EVENT_MEMORY});
  EXPECT_EQ(events[1].base, kBase + kPage);
  EXPECT_EQ(events[1].length, kPage);
  EXPECT_EQ(events[1].count, 1u);
  EXPECT_STREQ(events[1].call, "program");
  EXPECT_EQ(events[2].kind, uint32_t{PINRAIL_EVENT_RELEASED});
  EXPECT_EQ(events[2].reason, uint32_t{PINRAIL_REASON_INVALIDATED});
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].number, i);
}

TEST_F(Events, a_refusal_has_its_errno) {
  const Library library;
  const Pool pool(fake_);
  fake_.on_register([](const pinrail_register_request_t&, pinrail_registration_t*) { errno = ENOSPC; });
  fake_.fail_every_register(PINRAIL_ERR_ERROR);
  EXPECT_NE(pool.answer_to(kBase, kPage), PINRAIL_SUCCESS);
  const std::vector<pinrail_mpool_event_t> events = all_events(pool);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[0].kind, uint32_t{PINRAIL_EVENT_REFUSED});
  EXPECT_EQ(events[0].status, PINRAIL_ERR_ERROR);
  EXPECT_EQ(events.back().kind, uint32_t{PINRAIL_EVENT_MISS});
  EXPECT_EQ(events.back().reason, uint32_t{PINRAIL_MISS_REFUSED});
}

TEST_F(Events, the_ring_keeps_the_last_ones_and_a_reader_goes_on_where_it_was) {
  const Library library(Settings{{"mpool_base_events", "16"}});
  const Pool pool(fake_, not_kept());
  uint64_t next = 0;
  for (int i = 0; i < 100; ++i) pool.use(kBase + i * kPage, kPage);  // a miss and a release each
  const std::vector<pinrail_mpool_event_t> events = read_events(pool, &next);
  ASSERT_EQ(events.size(), 16u);
  EXPECT_EQ(events.front().number, 184u);
  EXPECT_EQ(events.back().base, kBase + 99 * kPage);
  EXPECT_EQ(next, 200u);
  EXPECT_TRUE(read_events(pool, &next).empty());
  pool.use(kBase, kPage);
  EXPECT_EQ(read_events(pool, &next).size(), 2u);
}

TEST_F(Events, without_a_ring_nothing_is_recorded) {
  const Library library(Settings{{"mpool_base_events", "0"}});
  const Pool pool(fake_);
  pool.use(kBase, kPage);
  auto event = sized<pinrail_mpool_event_t>();
  uint64_t next = 0;
  size_t count = 0;
  EXPECT_EQ(pinrail_mpool_events(pool.get(), &event, 1, &next, &count), PINRAIL_ERR_NOT_AVAILABLE);
}

TEST_F(Events, a_forked_child_reads_what_its_parent_did) {
  const Library library;
  const Pool pool(fake_);
  pool.use(kBase, kPage);
  expect_success_in_child([&] { return all_events(pool).size() == 1 ? 0 : 1; });
}

// recorder/J1, recorder/J2: the length of each range tells its base.
TEST_F(Events, events_are_read_whole_while_threads_write_them) {
  const Library library(Settings{{"mpool_base_events", "64"}});
  const Pool pool(fake_, not_kept());
  std::atomic<bool> done{false};
  Team writers(uintptr_t{4}, [&](uintptr_t writer) {
    for (uintptr_t i = 1; !done.load(); i = i % 500 + 1) {
      pool.use(kBase + writer * 0x1000000 + i * kPage, (writer * 500 + i) * kPage);
    }
  });
  uint64_t next = 0, seen = 0;
  for (int round = 0; round < 20000 && seen < 20000; ++round) {
    for (const pinrail_mpool_event_t& event : read_events(pool, &next)) {
      const uintptr_t writer = (event.base - kBase) / 0x1000000, i = (event.base - kBase) % 0x1000000 / kPage;
      EXPECT_EQ(event.length, (writer * 500 + i) * kPage);
      ++seen;
    }
  }
  done.store(true);
  writers.join();
  EXPECT_GT(seen, 0u);
}

TEST_F(Events, a_full_pool_names_its_limit_and_what_is_held) {
  const Library library;
  const PoolOptions one = at_most(1);
  const Pool pool(fake_, one);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  wait_for_next_second();  // another test may have been told in this one
  const std::string said = said_by([&] {
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(pool.answer_to(kBase + 8 * kPage, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    }
  });
  drop(held);
  EXPECT_TRUE(has(said, "count_limit is 1")) << said;
  EXPECT_TRUE(has(said, "1 registrations are in use")) << said;
  EXPECT_TRUE(has(said, "TEMP_OUT_OF_RESOURCE")) << said;
  EXPECT_EQ(said.find("no room", said.find("no room") + 1), std::string::npos) << "once a second: " << said;
}

// Limits count whole pages.
TEST_F(Events, a_request_that_alone_exceeds_the_limit_with_its_whole_pages_is_told_so) {
  const Library library;
  const Pool pool(fake_, at_most_bytes(static_cast<int64_t>(kPage)));
  wait_for_next_second();
  const std::string said = said_by([&] { EXPECT_EQ(pool.answer_to(kBase + 1, kPage), PINRAIL_ERR_OUT_OF_RESOURCE); });
  EXPECT_TRUE(has(said, "alone exceeds a limit") && !has(said, "limit of the pool is full")) << said;
}

TEST_F(Events, a_device_that_is_full_is_named_instead_of_a_limit) {
  const Library library;
  const Pool pool(fake_);
  wait_for_next_second();
  fake_.fail_every_register(PINRAIL_ERR_OUT_OF_RESOURCE);
  const std::string said = said_by([&] { EXPECT_NE(pool.answer_to(kBase, kPage), PINRAIL_SUCCESS); });
  EXPECT_TRUE(has(said, "is full") && has(said, "ulimit -l") && !has(said, "size_limit")) << said;
}

TEST_F(Events, memory_that_goes_away_at_each_try_is_told_instead_of_a_limit) {
  const Library library;
  const Pool pool(fake_);
  wait_for_next_second();
  fake_.on_register([](auto&&...) { report(kBase, kPage); });
  pinrail_handle_t handle{};
  const std::string said = said_by([&] { EXPECT_NE(pool.reg(kBase, kPage, &handle), PINRAIL_SUCCESS); });
  EXPECT_TRUE(has(said, "while the registrar ran") && !has(said, "limit")) << said;
}

TEST_F(Events, verbosity_says_refusals_then_misses_then_everything) {
  const auto said_at = [&](const char* verbosity) {
    return said_by([&] {
      const Library library(Settings{{"mpool_grdma_verbose", verbosity}});
      const Pool pool(fake_);
      pool.use(kBase, kPage);
      report(kBase, kPage);
      fake_.fail_every_register(PINRAIL_ERR_ERROR);
      EXPECT_NE(pool.answer_to(kBase + 8 * kPage, kPage), PINRAIL_SUCCESS);
      fake_.fail_every_register(PINRAIL_SUCCESS);
    });
  };
  const std::string none = said_at("0"), refusals = said_at("10"), misses = said_at("30"), all = said_at("50");
  EXPECT_FALSE(has(none, "refused")) << none;
  EXPECT_TRUE(has(refusals, "the registrar refused") && !has(refusals, "cold")) << refusals;
  EXPECT_TRUE(has(misses, "cold; SUCCESS") && !has(misses, "went away, seen by")) << misses;
  EXPECT_TRUE(has(all, "went away, seen by program: 1 registration") && has(all, "released")) << all;
}

}  // namespace
}  // namespace pinrail::test
