// SPDX-License-Identifier: BSD-3-Clause
// Threads at once, where one call waits for another or must not, and what a call costs beside many of them. test/attack
// has the random calls of many threads.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kShared = 0x10000000;

// What is not kept and is displaced just as its last reference goes: its drop leaves it to the insert that displaced
// it. The larger one's registration tells the other thread to drop the smaller one, a bit later each time.
TEST(GrdmaDisplaced, as_the_last_reference_goes) {
  constexpr int kRounds = 20000, kDelays = 100;
  Library library;
  fake::FakeRegistrar fake;
  const Pool pool(fake, {0, 0, 0});
  std::atomic<int> is_there{0}, may_go{0}, round{0};
  fake.on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    if (request.length > kPage) may_go = round.load();
    return PINRAIL_SUCCESS;
  });
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      const pinrail_handle_t smaller = pool.must(kShared + kPage, kPage);
      is_there = i;
      while (may_go < i) sched_yield();
      for (int pauses = i % kDelays; pauses != 0; --pauses) may_go.load();
      drop(smaller);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    while (is_there < i) sched_yield();
    round = i;
    pool.use(kShared, 4 * kPage);
    may_go = i;  // also if the other thread had found the larger one, and so did this one
  }
  other.join();
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake.live_count(), 0u);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

TEST(GrdmaStressSerialized, two_pools_of_one_registrar_call_it_one_at_a_time) {
  Library library;
  fake::FakeRegistrar fake(fake::options_with(&fake::FakeOptions::thread_mode, PINRAIL_THREAD_SERIALIZED));
  fake.on_register([](const pinrail_register_request_t&, pinrail_registration_t*) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  Pool one(fake, {1, PINRAIL_UNSET, 8, 0, "one"}), other(fake, {1, PINRAIL_UNSET, 8, 0, "other"});
  on_threads(4u, [&](unsigned thread) {
    std::mt19937 random(thread);
    for (int i = 0; i < 500; ++i) (thread % 2 == 0 ? one : other).use(kShared + random() % 64 * kPage, kPage);
  });
  EXPECT_EQ(fake.most_at_once(), 1);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

// R8: what a victim leaves over is no room before the device has deregistered the victim.
TEST(GrdmaEviction, what_a_victim_leaves_over_waits_for_the_device) {
  const Library library;
  fake::FakeRegistrar fake;
  const Pool pool(fake, {1, 4 * kPage, PINRAIL_UNSET});
  pool.use(kShared, 4 * kPage);
  std::atomic<bool> is_first{true};
  std::thread other;
  fake.on_deregister([&](const pinrail_registration_t*, pinrail_reason_t) {
    if (!is_first.exchange(false)) return;
    other = std::thread([&] { pool.use(kShared + 200 * kPage, 3 * kPage); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  pool.use(kShared + 100 * kPage, kPage);
  ASSERT_TRUE(other.joinable()) << "nothing was evicted";
  other.join();
  EXPECT_LE(fake.peak_live_bytes(), 4 * kPage);
  fake.on_deregister(nullptr);
}

// R10: ThreadSanitizer sees whether the neighbour comes back to a pool that is gone.
TEST(GrdmaEviction, a_pool_may_end_while_its_neighbour_evicts_from_it) {
  const Library library;
  fake::FakeRegistrar fake;
  const PoolOptions shared = {1, PINRAIL_UNSET, 4, 0, "shared"};
  const Pool neighbour(fake, shared);
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> wrong{0};
  std::thread evictor([&] {
    for (uintptr_t i = 0; !is_over; ++i) {
      const pinrail_handle_t held = neighbour.must(kShared + i % 16 * 2 * kPage, kPage);
      if (!fake.is_live(held.reg)) ++wrong;
      std::this_thread::yield();
      if (!fake.is_live(held.reg)) ++wrong;
      if (pinrail_mpool_deregister(held) != PINRAIL_SUCCESS) ++wrong;
    }
  });
  for (int i = 0; i < short_or_long(500, 3000) && wrong == 0; ++i) {
    Pool ending(fake, shared);
    for (uintptr_t page = 0; page < 3; ++page) ending.use(kShared + 2 * page * kPage, kPage);
    if (ending.close() != PINRAIL_SUCCESS) ++wrong;
  }
  is_over = true;
  evictor.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

// R5: equal requests at once ask the device once; if it refuses, each asks for itself.
TEST(GrdmaPending, equal_calls_wait_for_the_one_that_is_under_way) {
  const Library library{{{"mpool_grdma_rights", "asked"}}};  // else what is refused is asked for with fewer, too
  fake::FakeRegistrar fake;
  fake.on_register([](const pinrail_register_request_t&, pinrail_registration_t*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  Pool pool(fake);
  on_threads(8, [&pool] { pool.use(kShared, 4 * kPage); });
  EXPECT_EQ(fake.register_calls(), 1u);
  EXPECT_EQ(pool.stats().hits, 7u);

  fake.fail_every_register(PINRAIL_ERR_PERM);
  std::atomic<int> refused{0};
  on_threads(3, [&] {
    if (pool.answer_to(kShared + 100 * kPage, kPage) == PINRAIL_ERR_PERM) ++refused;
  });
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(fake.register_calls(), 4u);
}

// monitor/M1: an event in flight never meets a pool that is gone.
TEST(GrdmaEvents, pools_come_and_go_while_events_arrive) {
  Library library;
  fake::FakeRegistrar fake;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> events{0};
  Team reporters(2, [&] {
    while (!stop) {
      report(kShared, 64 * kPage);
      ++events;
    }
  });
  for (int i = 0; i < 100 || events < 2000; ++i) {  // until the reporters really run
    Pool pool(fake);
    pool.use(kShared + 100 * kPage, kPage);
    pinrail_handle_t handle{};
    if (pool.reg(kShared, kPage, &handle) == PINRAIL_SUCCESS) drop(handle);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  }
  stop = true;
  reporters.join();
  EXPECT_GT(events, 300u);
  EXPECT_EQ(fake.live_count(), 0u);
}

// R6: a registrar that blocks, allocates and unmaps delays no other thread. It blocks until the others have done all
// they want; if one of them waits for it, it gives up.
class SlowRegistrar : public ::testing::TestWithParam<pinrail_thread_mode_t> {};

TEST_P(SlowRegistrar, delays_no_hit_no_event_and_no_other_range) {
  constexpr uintptr_t kSlow = 0x70000000;
  constexpr uintptr_t kRounds = 1000;
  Library library;
  fake::FakeRegistrar fake(fake::options_with(&fake::FakeOptions::thread_mode, GetParam()));
  std::atomic<bool> blocks{false}, others_are_done{false}, gave_up{false};
  fake.on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    if (reinterpret_cast<uintptr_t>(request.addr) != kSlow) return;
    blocks = true;
    void* memory = std::malloc(64 << 20);
    std::free(memory);
    void* mapped = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pinrail_monitor_report(mapped, 1 << 20);
    munmap(mapped, 1 << 20);
    gave_up = !comes_true([&] { return others_are_done.load(); });
  });
  Pool pool(fake);
  pool.use(kShared, kPage);
  std::thread slow([&] { pool.use(kSlow, kPage); });
  while (!blocks) std::this_thread::yield();

  const uint64_t hits = pool.stats().hits;
  for (uintptr_t i = 1; i <= kRounds; ++i) {
    pool.use(kShared, kPage);
    // Other ranges are registered meanwhile, but not by a device that is called by one at a time.
    if (GetParam() == PINRAIL_THREAD_CONCURRENT) pool.use(kShared + i * 16 * kPage, kPage);
    report(kShared + i * 16 * kPage, kPage);
  }
  others_are_done = true;
  slow.join();
  EXPECT_FALSE(gave_up) << "a thread waited for it";
  EXPECT_EQ(pool.stats().hits - hits, kRounds);
  EXPECT_EQ(fake.register_calls(), GetParam() == PINRAIL_THREAD_CONCURRENT ? 2 + kRounds : 2u);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Modes, SlowRegistrar, ::testing::Values(PINRAIL_THREAD_CONCURRENT, PINRAIL_THREAD_SERIALIZED));

// What a call costs does not grow with what else is there: dead registrations that are held, threads that have ended, a
// pool that is being destroyed. Costs are the calling thread's processor time, compared within one run.
// The figures are printed.

constexpr uintptr_t kBase = 0x10000000;

double seconds_of(const std::function<void()>& work) {
  const auto begin = own_cpu_time();
  work();
  return std::chrono::duration<double>(own_cpu_time() - begin).count();
}

class Scale : public ::testing::Test {
 protected:
  const Library library_;
  fake::FakeRegistrar registrar_{without_cost()};
};

// Per drop, where so many are dead and held.
double cost_of_a_dead_drop(const fake::FakeRegistrar& registrar, size_t count) {
  const Pool pool(registrar);
  std::vector<pinrail_handle_t> held;
  for (size_t i = 0; i < count; ++i) held.push_back(pool.must(kBase + 2 * i * kPage, kPage));
  report(kBase, 2 * count * kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_count, count) << "what is held was given back";
  const double seconds = seconds_of([&] {
    for (const pinrail_handle_t handle : held) drop(handle);
  });
  EXPECT_EQ(pool.stats().registered_count, 0u) << "a last drop gives it back at once";
  EXPECT_TRUE(pool.invariants_hold());
  return seconds / static_cast<double>(count);
}

TEST_F(Scale, a_drop_of_what_is_dead_costs_the_same_beside_many_that_are_held) {
  const double few = std::max(cost_of_a_dead_drop(registrar_, 500), 1e-7);
  const double many = cost_of_a_dead_drop(registrar_, 16000);
  std::printf("a drop of what is dead: %.0f ns beside 16,000 that are held, %.0f beside 500\n", many * 1e9, few * 1e9);
  EXPECT_LT(many, 5 * few) << many * 1e9 << " ns beside 16,000, " << few * 1e9 << " beside 500";
}

// Each of 20,000 registers evicts one.
double cost_of_a_miss(const Pool& pool) {
  constexpr size_t kMisses = 20000;
  const auto misses = [&] {
    for (size_t i = 0; i < kMisses; ++i) pool.use(kBase + i * kPage, kPage);
  };
  misses();
  double least = 1e9;
  for (int i = 0; i < 3; ++i) least = std::min(least, seconds_of(misses));
  return least / kMisses;
}

TEST_F(Scale, a_miss_costs_the_same_once_threads_have_ended) {
  const Pool pool(registrar_, at_most(1024));
  const double before = cost_of_a_miss(pool);
  const size_t count = short_or_long(500, 2000);
  std::atomic<size_t> ready{0};
  std::promise<void> all;
  const std::shared_future<void> all_are_ready = all.get_future().share();
  on_threads(count, [&] {  // they end when all have used the pool
    pool.use(kBase, kPage);
    if (++ready == count) all.set_value();
    all_are_ready.wait();
  });
  const double after = cost_of_a_miss(pool);
  std::printf("a miss: %.0f ns after %zu threads have ended, %.0f before\n", after * 1e9, count, before * 1e9);
  // When all records were summed for ever, it was 21 times. ThreadSanitizer's own costs grow twofold with such threads.
  EXPECT_LT(after, 5 * before) << after * 1e9 << " ns after, " << before * 1e9 << " before";
}

// R9, and no count wraps: threads that come and go take one buffer and release what others have taken, while one handle
// is held throughout. It is never evicted; in the end the counts are 0, so it is, and the pool is destroyed.
TEST(HotBuffer, taken_and_dropped_on_threads_that_come_and_go_it_stays_as_long_as_it_is_held) {
  constexpr size_t kAtOnce = 50;
  const Library library;
  const fake::FakeRegistrar registrar;
  Pool pool(registrar);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  const int64_t operations = short_or_long(1000000, 10000000);
  std::atomic<int64_t> left{operations}, done{0};
  std::atomic<uint64_t> wrong{0};
  std::mutex mutex;
  std::deque<std::vector<pinrail_handle_t>> passed_on;
  const auto release_oldest = [&](size_t but) {
    std::vector<pinrail_handle_t> batch;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (passed_on.size() <= but) return;
      batch = std::move(passed_on.front());
      passed_on.pop_front();
    }
    for (const pinrail_handle_t handle : batch) wrong += pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS ? 0 : 1;
  };
  const auto live = [&] {
    for (int round = 0; round < 100 && left.fetch_sub(kAtOnce) > 0; ++round) {
      std::vector<pinrail_handle_t> batch(kAtOnce);
      for (pinrail_handle_t& handle : batch) {
        if (pool.reg(kBase, kPage, &handle) != PINRAIL_SUCCESS || handle.reg != held.reg) ++wrong;
      }
      done += kAtOnce;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        passed_on.push_back(std::move(batch));
      }
      release_oldest(64);
    }
  };
  Team threads(short_or_long(48, 128), [&] {
    while (left > 0) std::thread(live).join();
  });
  for (; left > 0; usleep(1000)) {
    if (pinrail_mpool_evict(pool.get()) != PINRAIL_ERR_NOT_FOUND || !pool.invariants_hold()) ++wrong;
  }
  threads.join();
  while (!passed_on.empty()) release_oldest(0);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(pool.stats().hits, static_cast<uint64_t>(done));
  EXPECT_EQ(registrar.register_calls(), 1u);
  EXPECT_EQ(registrar.deregister_calls(), 0u);
  drop(held);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.live_count(), 0u);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

// Threads that pin, stream, use and unmap.

constexpr size_t kPages = 512;
constexpr size_t kChunk = 8 * kPage;

class Load {
 public:
  Load(const Pool& pool, unsigned seed) : pool_(pool), random_(seed) {}

  void step() {
    switch (random_() % 6) {
      case 0: pin_in_background(); break;
      case 1: pin_and_unpin(); break;
      case 2: stream(); break;
      case 3: report(kBase + random_() % kPages * kPage, (1 + random_() % 16) * kPage); break;
      default:
        for (int i = 0; i < 50; ++i) use();
    }
  }

 private:
  pinrail_range_t range(size_t most_pages) {
    const size_t first = random_() % (kPages - most_pages);
    return {reinterpret_cast<void*>(kBase + first * kPage), (1 + random_() % most_pages) * kPage};
  }
  void pin_in_background() {
    pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
    options.chunk_size = kChunk;
    options.threads = 1 + random_() % 3;
    options.flags = random_() % 2 != 0 ? PINRAIL_PREPIN_PARTIAL : 0;
    const pinrail_range_t ranges[] = {range(200), range(30)};
    pinrail_prepin_t* prepin = nullptr;
    ASSERT_EQ(pinrail_mpool_prepin_start(pool_.get(), ranges, 2, 1, &options, &prepin), PINRAIL_SUCCESS);
    if (random_() % 2 != 0) (void)pinrail_prepin_wait_range(prepin, ranges[0].addr, ranges[0].length / 2);
    if (random_() % 3 == 0) {
      EXPECT_EQ(pinrail_prepin_cancel(prepin), PINRAIL_SUCCESS);
    }
    pinrail_status_t statuses[2];
    const pinrail_status_t status = pinrail_prepin_wait(prepin, statuses);
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
    if (status == PINRAIL_ERR_NOT_FOUND) return;  // cancelled
    const bool is_partial = (options.flags & PINRAIL_PREPIN_PARTIAL) != 0;
    for (int i = 0; i < 2; ++i) {
      if (status != PINRAIL_SUCCESS && (!is_partial || statuses[i] != PINRAIL_SUCCESS)) continue;
      EXPECT_EQ(pinrail_mpool_unpin(pool_.get(), &ranges[i], 1, 1), PINRAIL_SUCCESS);
    }
  }
  void pin_and_unpin() {
    const pinrail_range_t ranges[] = {range(20), range(20), range(20)};
    if (pinrail_mpool_prepin(pool_.get(), ranges, 3, 1, nullptr, nullptr) != PINRAIL_SUCCESS) return;
    use();
    EXPECT_EQ(pinrail_mpool_unpin(pool_.get(), ranges, 3, 1), PINRAIL_SUCCESS);
  }
  void stream() {
    pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
    options.chunk_size = kChunk;
    options.ahead = random_() % 4;
    const pinrail_range_t all = range(100);
    pinrail_chunk_stream_t* chunks = nullptr;
    ASSERT_EQ(pinrail_chunk_stream_open(pool_.get(), all.addr, all.length, 1, &options, &chunks), PINRAIL_SUCCESS);
    pinrail_handle_t handle;
    for (size_t left = random_() % 20; left != 0; --left) {
      if (pinrail_chunk_stream_next(chunks, &handle, nullptr, nullptr) != PINRAIL_SUCCESS) break;
      drop(handle);
    }
    EXPECT_EQ(pinrail_chunk_stream_close(chunks), PINRAIL_SUCCESS);
  }
  void use() {
    const pinrail_range_t one = range(8);
    pinrail_handle_t handle;
    const pinrail_status_t status = pinrail_mpool_register(pool_.get(), one.addr, one.length, 1, 0, &handle);
    if (status != PINRAIL_SUCCESS) return;  // raced too often, or the script
    const auto base = reinterpret_cast<uintptr_t>(handle.reg->base);
    EXPECT_LE(base, reinterpret_cast<uintptr_t>(one.addr));
    EXPECT_GE(base + handle.reg->length, reinterpret_cast<uintptr_t>(one.addr) + one.length);
    drop(handle);
  }

  const Pool& pool_;
  std::mt19937 random_;
};

TEST(PrepinStress, threads_that_pin_stream_use_and_unmap_leave_nothing) {
  const Library library(Settings{{"mpool_grdma_gc_thread", "auto"}});
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(short_or_long(1500, 10000));
  for (unsigned round = 0; std::chrono::steady_clock::now() < end; ++round) {
    fake::FakeRegistrar registrar;
    Pool pool(registrar);
    if (round % 2 != 0) registrar.fail_register(20 + round % 50, PINRAIL_ERR_PERM);
    on_threads(4u, [&](unsigned i) {
      Load load(pool, round * 4 + i);
      for (int step = 0; step < 20; ++step) load.step();
    });
    ASSERT_TRUE(pool.invariants_hold()) << round;
    pool.evict_all();
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(registrar.violations(), std::vector<std::string>{});
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << round << ": nothing is referenced";
    EXPECT_EQ(registrar.live_count(), 0u) << round;
  }
}

TEST(GcThreadStress, a_pool_is_destroyed_while_it_works_and_no_device_is_called_afterwards) {
  for (int round = 0; round < short_or_long(80, 300); ++round) {
    const Library library(Settings{{"mpool_grdma_gc_thread", "auto"}, {"mpool_grdma_gc_limit", "8K"}});  // ends as well
    fake::FakeRegistrar device;
    Pool pool(device);
    std::atomic<bool> is_over{false};
    std::atomic<int> late{0};
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (is_over) ++late;
    });
    for (uintptr_t i = 0; i < 20; ++i) pool.use(kBase + 2 * i * kPage, kPage);
    report(kBase, 64 * kPage);
    if (round % 2 == 0) sched_yield();
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
    is_over = true;
    ASSERT_EQ(device.live_count(), 0u);
    ASSERT_EQ(late.load(), 0);
    ASSERT_EQ(device.violations(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace pinrail::test
