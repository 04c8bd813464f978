// SPDX-License-Identifier: BSD-3-Clause
// Forks while other threads are in the middle of everything: no child waits for a lock that is never released, and
// none calls the parent's device.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "test/support/library.h"
#include "test/support/registrars.h"
#include "test/support/threads.h"

namespace {
std::atomic<int> in_loader{0};
std::atomic<unsigned> loader_takes_us{0};
}  // namespace

#ifndef __SANITIZE_THREAD__  // whose runtime calls it before it can run instrumented code
// Takes the place of the C library's, which holds a lock that stays locked in a child that is forked meanwhile. It
// takes longer, so that forks would meet it.
extern "C" __attribute__((visibility("default"))) int dl_iterate_phdr(int (*visit)(dl_phdr_info*, size_t, void*),
                                                                      void* arg) {
  static const auto original = reinterpret_cast<decltype(&dl_iterate_phdr)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  ++in_loader;
  if (loader_takes_us.load() != 0) usleep(loader_takes_us.load());
  const int result = original(visit, arg);
  --in_loader;
  return result;
}
#endif

namespace pinrail::test {
namespace {

constexpr unsigned kPatienceSeconds = 30;
constexpr size_t kBytes = 4 * kPage;

#ifdef __SANITIZE_THREAD__
const int kForks = 60;  // a fork under ThreadSanitizer takes 15 ms and more
constexpr bool kThreadsInChildren = false;
// Its allocator is not made for fork(): another thread may have held one of its locks, and the child waits for ever.
constexpr bool kChildrenMayAllocate = false;
#else
const int kForks = short_or_long(400, 1000);
constexpr bool kThreadsInChildren = true;
constexpr bool kChildrenMayAllocate = true;
#endif

void* map_some() { return mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

// A new thread has no registrations of its own to use again, so it takes the lock of their memory.
void register_in_new_thread(pinrail_mpool_t* pool, void* memory) {
  std::thread([pool, memory] {
    pinrail_handle_t handles[32];
    size_t held = 0;
    for (pinrail_handle_t& handle : handles) {
      if (pinrail_mpool_register(pool, memory, kBytes, 1, PINRAIL_FLAG_CACHE_BYPASS, &handle) != PINRAIL_SUCCESS) break;
      ++held;
    }
    for (size_t i = 0; i < held; ++i) Status(pinrail_mpool_deregister(handles[i])).ignore();
  }).join();
}

// Registers what it maps, hits it, drops it, unmaps it: misses, hits, evictions, events, and the gc.
void be_busy(pinrail_mpool_t* pool, unsigned seed, const std::atomic<bool>& stop) {
  std::mt19937 random(seed);
  while (!stop) {
    void* const memory = map_some();
    pinrail_handle_t handles[3];
    size_t held = 0;
    for (pinrail_handle_t& handle : handles) {
      if (pinrail_mpool_register(pool, memory, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS) ++held;
    }
    if (random() % 64 == 0) register_in_new_thread(pool, memory);
    const bool early = random() % 2 == 0;
    if (early) munmap(memory, kBytes);
    if (early) pinrail_monitor_report(memory, kBytes);
    for (size_t i = 0; i < held; ++i) {
      if (pinrail_mpool_deregister(handles[i]) != PINRAIL_SUCCESS) std::abort();
    }
    if (!early) pinrail_monitor_report(memory, kBytes);
    if (!early) munmap(memory, kBytes);
    if (random() % 64 == 0) Status(pinrail_mpool_evict(pool)).ignore();
  }
}

// A child with monitors and threads of its own.
int begin_anew(const Settings& settings) {
  Library library(settings);
  STEP(11, library.status == PINRAIL_SUCCESS);
  const WatchedRegistrar device;
  Pool pool(device.table(), {PINRAIL_UNSET});
  STEP(12, pool.status == PINRAIL_SUCCESS);
  void* const memory = map_some();
  pinrail_handle_t handle{};
  STEP(13, pinrail_mpool_register(pool.get(), memory, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS);
  STEP(14, pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS);
  STEP(15, munmap(memory, kBytes) == 0);
  pinrail_monitor_report(memory, kBytes);
  STEP(16, pinrail_mpool_find(pool.get(), memory, kBytes, 1, &handle) == PINRAIL_ERR_NOT_FOUND);
  STEP(17, pool.close() == PINRAIL_SUCCESS);
  STEP(18, device.live() == 0);
  return 0;
}

struct Inherited {
  pinrail_mpool_t* pool;
  pinrail_handle_t handle;
  void* memory;
};

int live_as_a_child(const Inherited& from, int round, const Settings& settings) {
  pinrail_handle_t handle{};
  STEP(7, in_loader.load() == 0);
  if (round % 2 == 0) STEP(1, pinrail_mpool_deregister(from.handle) == PINRAIL_SUCCESS);
  STEP(2, munmap(from.memory, kBytes) == 0);
  pinrail_monitor_report(from.memory, kBytes);
  STEP(3, pinrail_mpool_register(from.pool, from.memory, kBytes, 1, 0, &handle) == PINRAIL_ERR_NOT_AVAILABLE);
  if (round % 2 == 1) STEP(4, pinrail_mpool_deregister(from.handle) == PINRAIL_SUCCESS);
  if (round % 4 == 3) STEP(5, pinrail_mpool_destroy(from.pool, 0) == PINRAIL_SUCCESS);
  if (kChildrenMayAllocate && round % 3 == 0) {
    const int wrong = begin_anew(settings);
    STEP(wrong, wrong == 0);
  }
  if (round % 5 == 0) STEP(6, pinrail_finalize() == PINRAIL_SUCCESS);
  return 0;
}

void fork_under_load(const Settings& settings, unsigned nap, int forks) {
  Library library(settings);
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  const WatchedRegistrar device(nap);
  Pool pool(device.table(), {PINRAIL_UNSET});
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  Inherited from{pool.get(), {}, map_some()};
  ASSERT_EQ(pinrail_mpool_register(pool.get(), from.memory, kBytes, 1, 0, &from.handle), PINRAIL_SUCCESS);
  std::atomic<bool> stop{false};
  Team busy(4u, [&](unsigned i) { be_busy(pool.get(), i, stop); });
  loader_takes_us = 100;
  for (int round = 0; round < forks; ++round) {
    EXPECT_EQ(exit_status_of([&] {
                alarm(kPatienceSeconds);
                const int wrong = live_as_a_child(from, round, settings);
                if (round % 2 != 0) exit(wrong);
                return wrong;
              }),
              0)
        << "round " << round;
    if (::testing::Test::HasFailure()) break;
  }
  stop = true;
  busy.join();
  loader_takes_us = 0;
  drop(from.handle);
  munmap(from.memory, kBytes);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(device.counts().by_strangers, 0u);
  EXPECT_EQ(device.live(), 0u);
}

TEST(ForkStress, many_children_under_four_busy_threads) {
  fork_under_load(Settings{{"monitor", "external"}}, 0, kForks);
}

TEST(ForkStress, while_threads_sleep_in_the_device) {
  fork_under_load(Settings{{"monitor", "external"}}, 500, kForks / 4);
}

TEST(ForkStress, with_the_monitors_that_work_here) {
  if (!kThreadsInChildren) GTEST_SKIP() << "ThreadSanitizer starts no threads in forked children, monitors need them";
  fork_under_load(Settings{{"monitor", ""}, {"monitor_patcher_check_interval", "1"}}, 0, kForks / 4);
}

// The library comes and goes on another thread: its components are half open, its monitors half started.
TEST(ForkStress, in_the_middle_of_init_and_finalize) {
  if (!kThreadsInChildren) GTEST_SKIP() << "ThreadSanitizer starts no threads in forked children, monitors need them";
  const Settings settings{{"monitor", ""}, {"monitor_patcher_check_interval", "1"}};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) Library library(settings);
  });
  int wrong = 0;
  for (int round = 0; round < kForks / 10 && wrong == 0; ++round) {
    wrong = exit_status_of([&] {
      alarm(kPatienceSeconds);
      munmap(map_some(), kBytes);
      return begin_anew(settings);
    });
    EXPECT_EQ(wrong, 0) << "round " << round;
  }
  stop = true;
  other.join();
}

}  // namespace
}  // namespace pinrail::test
