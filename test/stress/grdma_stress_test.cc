// SPDX-License-Identifier: BSD-3-Clause
// Threads register, deregister, invalidate and evict at once; what must hold is checked while they do.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kShared = 0x10000000;
constexpr uintptr_t kOwn = 0x40000000;
constexpr uintptr_t kOwnStride = 0x1000000;

// Shared by the threads of one run.
struct Traffic {
  const Pool& pool;
  std::atomic<uint64_t> operations{0}, wrong{0}, refused{0};
};

bool covers(pinrail_handle_t handle, uintptr_t base, size_t length, uint32_t access) {
  const auto start = reinterpret_cast<uintptr_t>(handle.reg->base);
  return start <= base && base + length <= start + handle.reg->length && (handle.reg->rights & access) == access;
}

// Ranges that all threads use, with overlaps, changing rights, limits that bite and references held for a while.
void use_shared(Traffic* traffic, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  std::vector<pinrail_handle_t> held;
  for (int i = 0; i < rounds; ++i) {
    const uintptr_t base = kShared + (random() % 64) * kPage;
    const size_t length = (1 + random() % 8) * kPage;
    const uint32_t access = random() % 4;
    const uint32_t flags = random() % 16 == 0   ? PINRAIL_FLAG_CACHE_BYPASS
                           : random() % 16 == 1 ? PINRAIL_FLAG_PERSISTENT
                                                : 0;
    pinrail_handle_t handle{};
    const pinrail_status_t status = traffic->pool.reg(base, length, &handle, access, flags);
    ++traffic->operations;
    if (status == PINRAIL_SUCCESS) {
      if (!covers(handle, base, length, access)) ++traffic->wrong;
      held.push_back(handle);
    } else if (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) {
      ++traffic->refused;
    } else {
      ++traffic->wrong;
    }
    if (held.size() > random() % 4) {
      if (pinrail_mpool_deregister(held.front()) != PINRAIL_SUCCESS) ++traffic->wrong;
      held.erase(held.begin());
    }
    if (random() % 32 == 0) report(base, kPage);
    if (random() % 64 == 0) (void)(pinrail_mpool_evict(traffic->pool.get()) == PINRAIL_SUCCESS);
  }
  for (pinrail_handle_t handle : held) {
    if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++traffic->wrong;
  }
}

// A range that this thread alone uses: after an event it never gets the registration from before (E1).
void use_own(Traffic* traffic, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  const uintptr_t base = kOwn + seed * kOwnStride;
  for (int i = 0; i < rounds; ++i) {
    pinrail_handle_t before{}, after{};
    if (traffic->pool.reg(base, 4 * kPage, &before) != PINRAIL_SUCCESS) {
      ++traffic->refused;
      continue;
    }
    const bool still_held = random() % 2 == 0;
    if (!still_held && pinrail_mpool_deregister(before) != PINRAIL_SUCCESS) ++traffic->wrong;
    report(base + (random() % 4) * kPage, 1);
    if (traffic->pool.has(base, kPage)) ++traffic->wrong;
    if (traffic->pool.reg(base, 4 * kPage, &after) == PINRAIL_SUCCESS) {
      if (after.reg == before.reg && after.generation == before.generation) ++traffic->wrong;
      if (pinrail_mpool_deregister(after) != PINRAIL_SUCCESS) ++traffic->wrong;
    }
    if (still_held && pinrail_mpool_deregister(before) != PINRAIL_SUCCESS) ++traffic->wrong;
    ++traffic->operations;
  }
}

void check_all_the_time(const Pool* pool, const std::atomic<bool>* stop, std::atomic<uint64_t>* broken,
                        uint64_t limit) {
  while (!*stop) {
    if (!pool->invariants_hold()) ++*broken;
    if (pool->stats().registered_bytes > limit) ++*broken;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

struct Shape {
  int64_t leave_pinned;
  int64_t size_limit;
  int64_t count_limit;
};

class GrdmaStress : public ::testing::TestWithParam<Shape> {};

TEST_P(GrdmaStress, many_threads_and_every_invariant_holds) {
  Library library;
  fake::FakeRegistrar fake;
  const Shape shape = GetParam();
  Pool pool(fake, {shape.leave_pinned, shape.size_limit, shape.count_limit});
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  Traffic traffic{pool};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> broken{0};
  const uint64_t limit = shape.size_limit > 0 ? static_cast<uint64_t>(shape.size_limit) : UINT64_MAX;
  std::thread checker(check_all_the_time, &pool, &stop, &broken, limit);
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(use_shared, &traffic, seed, 8000);
  for (unsigned seed = 5; seed <= 6; ++seed) threads.emplace_back(use_own, &traffic, seed, 4000);
  for (std::thread& thread : threads) thread.join();
  stop = true;
  checker.join();

  EXPECT_EQ(traffic.wrong, 0u);
  EXPECT_EQ(broken, 0u);
  EXPECT_GE(traffic.operations, 32000u);
  EXPECT_LE(fake.peak_live_bytes(), limit);
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_bytes, fake.live_bytes());
  if (shape.leave_pinned == 0) {
    EXPECT_EQ(fake.live_count(), 0u);
  }
  ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << "every reference was given back";
  EXPECT_EQ(fake.live_count(), 0u);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

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

INSTANTIATE_TEST_SUITE_P(Modes, GrdmaStress,
                         ::testing::Values(Shape{0, 0, 0}, Shape{0, 64 * 4096, 0}, Shape{0, 0, 12}, Shape{1, 0, 0},
                                           Shape{1, 96 * 4096, 0}, Shape{1, 0, 12}));

TEST(GrdmaStressSerialized, a_registrar_that_asks_for_it_is_called_by_one_thread_at_a_time) {
  Library library;
  fake::FakeOptions options;
  options.thread_mode = PINRAIL_THREAD_SERIALIZED;
  fake::FakeRegistrar fake(options);
  std::atomic<int> calls{0};
  fake.on_register([&calls](const pinrail_register_request_t&, pinrail_registration_t*) {
    // Long enough now and then for the others to come in, if they could.
    if (++calls % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  Pool pool(fake, {1, PINRAIL_UNSET, 8});
  Traffic traffic{pool};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(use_shared, &traffic, seed, 3000);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(traffic.wrong, 0u);
  EXPECT_EQ(fake.most_at_once(), 1);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

TEST(GrdmaStressSerialized, two_pools_of_one_registrar_call_it_one_at_a_time) {
  Library library;
  fake::FakeOptions options;
  options.thread_mode = PINRAIL_THREAD_SERIALIZED;
  fake::FakeRegistrar fake(options);
  fake.on_register([](const pinrail_register_request_t&, pinrail_registration_t*) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  Pool one(fake, {1, PINRAIL_UNSET, 8, 0, "one"}), other(fake, {1, PINRAIL_UNSET, 8, 0, "other"});
  Traffic traffic[] = {{one}, {other}};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(use_shared, &traffic[i % 2], i + 1, 500);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(traffic[0].wrong + traffic[1].wrong, 0u);
  EXPECT_EQ(fake.most_at_once(), 1);
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
  std::vector<std::thread> reporters;
  for (int i = 0; i < 2; ++i) {
    reporters.emplace_back([&] {
      while (!stop) {
        report(kShared, 64 * kPage);
        ++events;
      }
    });
  }
  for (int i = 0; i < 300 || events < 2000; ++i) {  // until the reporters really run
    Pool pool(fake);
    pool.use(kShared + 100 * kPage, kPage);
    pinrail_handle_t handle{};
    if (pool.reg(kShared, kPage, &handle) == PINRAIL_SUCCESS) drop(handle);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  }
  stop = true;
  for (std::thread& reporter : reporters) reporter.join();
  EXPECT_GT(events, 300u);
  EXPECT_EQ(fake.live_count(), 0u);
}

// References taken on one thread and dropped on another stay right: idle ones can be evicted, held ones not.
TEST(GrdmaCrossThread, a_reference_may_be_dropped_on_any_thread) {
  Library library;
  fake::FakeRegistrar fake;
  Pool pool(fake, {1, PINRAIL_UNSET, 16});
  for (int round = 0; round < 50; ++round) {
    std::vector<pinrail_handle_t> held;
    for (uintptr_t i = 0; i < 16; ++i) held.push_back(pool.must(kShared + (round * 16 + i) * 16 * kPage, kPage));
    EXPECT_EQ(pool.answer_to(kOwn, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    std::thread([&] {
      for (pinrail_handle_t handle : held) drop(handle);
    }).join();
  }
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(fake.live_count(), 0u);
}

// R6: a registrar that blocks, allocates and unmaps delays no other thread. It blocks until the others have done all
// they want; if one of them waits for it, it gives up.
class SlowRegistrar : public ::testing::TestWithParam<pinrail_thread_mode_t> {};

TEST_P(SlowRegistrar, delays_no_hit_no_event_and_no_other_range) {
  constexpr uintptr_t kSlow = 0x70000000;
  constexpr uintptr_t kRounds = 1000;
  Library library;
  fake::FakeOptions options;
  options.thread_mode = GetParam();
  fake::FakeRegistrar fake(options);
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

}  // namespace
}  // namespace pinrail::test
