// SPDX-License-Identifier: BSD-3-Clause
// Each miss has one reason, and it is the right one; a pool records what it did lately, and says why a request found no
// room.
#include <pinrail/events.h>
#include <pinrail/listing.h>
#include <sys/mman.h>
#include <sys/vfs.h>
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

TEST_F(Reasons, an_eviction_is_forgotten_when_the_range_is_cached_again) {
  const Pool pool(fake_, at_most(1));
  pool.use(kBase, kPage);
  pool.use(kBase + kLong, kPage);
  pool.use(kBase, kPage);     // evicted
  pool.use(kBase, kPage, 3);  // not that again
  EXPECT_EQ(of(pool.stats()), "cold 2, rights 1, evicted 1");
}

// R3: there a longer one answers as little as one of other rights.
TEST_F(Reasons, an_exact_pool_misses_for_rights_only_what_has_the_same_range) {
  const Pool pool(fake_, {1, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_POOL_EXACT});
  pool.use(kBase, 2 * kPage);
  pool.use(kBase, kPage);
  pool.use(kBase, 2 * kPage, 3);
  EXPECT_EQ(of(pool.stats()), "cold 1, span 1, rights 1");
}

// Each cause, in pools of memory of other sizes and places.
TEST_F(Reasons, a_hundred_planted_causes_are_named_right) {
  struct Place {
    fake::FakeRegistrar* fake;
    const Pool& pool;
    uintptr_t base;
    size_t length;
    // What has been used begins there, and is as long; two lengths further nothing has been.
    void use(uintptr_t from, size_t bytes, uint32_t access = 1, uint32_t flags = 0) const {
      pool.use(from, bytes, access, flags);
    }
    uintptr_t fresh() const { return base + 2 * length; }
  };
  const struct {
    const char* named;
    PoolOptions options;
    void (*plant)(const Place& at);
  } causes[] = {
      {"cold 2", {}, [](const Place& at) { at.use(at.fresh(), at.length); }},
      {"cold 1, span 1", {}, [](const Place& at) { at.use(at.base, at.length + kPage); }},
      {"cold 1, span 1", {}, [](const Place& at) { at.use(at.base - kPage, at.length); }},
      {"cold 1, span 1", {}, [](const Place& at) { at.use(at.base - kPage, at.length + 2 * kPage); }},
      {"cold 1, rights 1", {}, [](const Place& at) { at.use(at.base, at.length, 3); }},
      {"cold 1, rights 1", {}, [](const Place& at) { at.use(at.base, at.length, 2); }},
      {"cold 1, event 1",
       {},
       [](const Place& at) {
         const Held held = at.pool.hold(at.base, at.length);
         report(at.base, kPage);
         at.use(at.base, at.length);
       }},
      {"cold 1, event 1",
       {},
       [](const Place& at) {
         report(at.base + at.length - kPage, kPage);
         at.use(at.base, at.length);
       }},
      {"cold 1, extent 1",
       {},
       [](const Place& at) {
         report(at.base, kPage);
         at.use(at.base + kPage, at.length - kPage);
       }},
      {"cold 2, evicted 2", at_most(1),
       [](const Place& at) {
         at.use(at.fresh(), at.length);
         at.use(at.base, at.length);
         at.use(at.fresh(), kPage);  // a part
       }},
      {"cold 1, bypass 1", {}, [](const Place& at) { at.use(at.base, at.length, 1, PINRAIL_FLAG_CACHE_BYPASS); }},
      {"cold 1, full 1", at_most(1),
       [](const Place& at) {
         const Held held = at.pool.hold(at.base, at.length);
         EXPECT_NE(at.pool.answer_to(at.fresh(), at.length), PINRAIL_SUCCESS);
       }},
      {"cold 1, refused 1",
       {},
       [](const Place& at) {
         at.fake->fail_register(1, PINRAIL_ERR_ERROR);
         EXPECT_NE(at.pool.answer_to(at.fresh(), at.length), PINRAIL_SUCCESS);
       }},
      {"cold 1, raced 1",
       {},
       [](const Place& at) {
         bool has_been = false;
         at.fake->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
           if (!std::exchange(has_been, true)) report(at.fresh(), kPage);
         });
         at.use(at.fresh(), at.length);
         at.fake->on_register({});
       }},
      {"not_kept 2", not_kept(), [](const Place& at) { at.use(at.base, at.length); }},
  };
  for (uintptr_t i = 0; i < 100; ++i) {
    const auto& cause = causes[i % std::size(causes)];
    const Pool pool(fake_, cause.options);
    const Place at{&fake_, pool, kBase + i * 0x40000000, 2 * kPage << i % 13};
    at.use(at.base, at.length);
    cause.plant(at);
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

// A pool records what it did lately, and says why a request found no room.

// A message that comes once a second goes by the seconds of this clock.
time_t second() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}
void wait_for_next_second() {
  const timespec next = {second() + 1, 0};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr);
}

using Events = OnePool<Pool>;

TEST_F(Events, a_registrations_life_is_recorded_in_its_order) {
  pool_->use(kBase, 2 * kPage);
  pool_->use(kBase, 2 * kPage);  // a hit leaves no event
  report(kBase + kPage, kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  const std::vector<pinrail_mpool_event_t> events = pool_->events();
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
  device_->on_register([](const pinrail_register_request_t&, pinrail_registration_t*) { errno = ENOSPC; });
  device_->fail_every_register(PINRAIL_ERR_ERROR);
  EXPECT_NE(pool_->answer_to(kBase, kPage), PINRAIL_SUCCESS);
  const std::vector<pinrail_mpool_event_t> events = pool_->events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[0].kind, uint32_t{PINRAIL_EVENT_REFUSED});
  EXPECT_EQ(events[0].status, PINRAIL_ERR_ERROR);
  EXPECT_EQ(events.back().kind, uint32_t{PINRAIL_EVENT_MISS});
  EXPECT_EQ(events.back().reason, uint32_t{PINRAIL_MISS_REFUSED});
}

TEST_F(Events, the_ring_keeps_the_last_ones_and_a_reader_goes_on_where_it_was) {
  make({{"mpool_base_events", "16"}}, {}, not_kept());
  uint64_t next = 0;
  for (int i = 0; i < 100; ++i) pool_->use(kBase + i * kPage, kPage);  // a miss and a release each
  const std::vector<pinrail_mpool_event_t> events = pool_->events(&next);
  ASSERT_EQ(events.size(), 16u);
  EXPECT_EQ(events.front().number, 184u);
  EXPECT_EQ(events.back().base, kBase + 99 * kPage);
  EXPECT_EQ(next, 200u);
  EXPECT_TRUE(pool_->events(&next).empty());
  pool_->use(kBase, kPage);
  EXPECT_EQ(pool_->events(&next).size(), 2u);
}

TEST_F(Events, without_a_ring_nothing_is_recorded) {
  make({{"mpool_base_events", "0"}});
  pool_->use(kBase, kPage);
  auto event = sized<pinrail_mpool_event_t>();
  uint64_t next = 0;
  size_t count = 0;
  EXPECT_EQ(pinrail_mpool_events(pool_->get(), &event, 1, &next, &count), PINRAIL_ERR_NOT_AVAILABLE);
}

TEST_F(Events, a_forked_child_reads_what_its_parent_did) {
  pool_->use(kBase, kPage);
  expect_success_in_child([&] { return pool_->events().size() == 1 ? 0 : 1; });
}

// recorder/J1, recorder/J2: the length of each range tells its base.
TEST_F(Events, events_are_read_whole_while_threads_write_them) {
  make({{"mpool_base_events", "64"}}, {}, not_kept());
  std::atomic<bool> done{false};
  Team writers(uintptr_t{4}, [&](uintptr_t writer) {
    for (uintptr_t i = 1; !done.load(); i = i % 500 + 1) {
      pool_->use(kBase + writer * 0x1000000 + i * kPage, (writer * 500 + i) * kPage);
    }
  });
  uint64_t next = 0, seen = 0;
  for (int round = 0; round < 5000 && seen < 5000; ++round) {
    for (const pinrail_mpool_event_t& event : pool_->events(&next)) {
      const uintptr_t writer = (event.base - kBase) / 0x1000000, i = (event.base - kBase) % 0x1000000 / kPage;
      EXPECT_EQ(event.length, (writer * 500 + i) * kPage);
      ++seen;
    }
  }
  done.store(true);
  writers.join();
  EXPECT_GT(seen, 0u);
}

// What was in a request's way is said once a second. Limits count whole pages.
TEST_F(Events, a_request_without_room_is_told_what_was_in_its_way) {
  const struct {
    std::vector<const char*> said;
    const char* not_said;
    PoolOptions options;
    pinrail_status_t status;
    void (*prepare)(fake::FakeRegistrar*);
  } ways[] = {
      {{"count_limit is 1", "1 registrations are in use", "TEMP_OUT_OF_RESOURCE"},
       "size_limit",
       at_most(1),
       PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
       {}},
      {{"alone exceeds a limit"}, "limit of the pool is full", at_most_bytes(kPage), PINRAIL_ERR_OUT_OF_RESOURCE, {}},
      {{"is full", "ulimit -l"},
       "size_limit",
       {},
       PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
       [](auto* fake) { fake->fail_every_register(PINRAIL_ERR_OUT_OF_RESOURCE); }},
      {{"while the registrar ran"},
       "limit",
       {},
       PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
       [](auto* fake) { fake->on_register([](auto&&...) { report(kBase, kPage); }); }},
  };
  for (const auto& way : ways) {
    make_pool({}, way.options);
    const Held held = pool_->hold(kBase + 64 * kPage, kPage);
    if (way.prepare != nullptr) way.prepare(device_.get());
    wait_for_next_second();  // another may have been told in this one
    const time_t first = second();
    const std::string said = said_by([&] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(pool_->answer_to(kBase + 1, kPage), way.status);
    });
    for (const char* const part : way.said) EXPECT_TRUE(has(said, part)) << part << ": " << said;
    EXPECT_FALSE(has(said, way.not_said)) << said;
    EXPECT_EQ(has(said, "raise \"ulimit -l\""), has(said, "ulimit -l is")) << said;
    EXPECT_GE(times(said, "no room"), 1u) << said;
    EXPECT_LE(times(said, "no room"), static_cast<size_t>(second() - first) + 1) << said;
  }
}

TEST_F(Events, verbosity_says_refusals_then_misses_then_everything) {
  const auto said_at = [&](const char* verbosity) {
    return said_by([&] {
      make({{"mpool_grdma_verbose", verbosity}});
      pool_->use(kBase, kPage);
      report(kBase, kPage);
      device_->fail_every_register(PINRAIL_ERR_ERROR);
      EXPECT_NE(pool_->answer_to(kBase + 8 * kPage, kPage), PINRAIL_SUCCESS);
      pool_.reset();
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
