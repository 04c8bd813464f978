// SPDX-License-Identifier: BSD-3-Clause
#include "base/sync/futex_lock.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <mutex>
#include <thread>
#include <vector>

#include "base/sync/lock.h"
#include "test/support/team.h"

namespace pinrail {
namespace {

TEST(FutexLock, is_held_by_one_at_a_time) {
  FutexLock lock;
  lock.lock();
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock()) << "not recursive";
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
}

// Many more threads than processors, each inside for long enough that others come to sleep.
TEST(FutexLock, no_update_under_the_lock_is_lost_and_no_thread_sleeps_for_ever) {
  constexpr int kThreads = 8, kRounds = 20000;
  FutexLock lock;
  long plain = 0;
  test::on_threads(kThreads, [&](int i) {
    for (int round = 0; round < kRounds; ++round) {
      const std::lock_guard<FutexLock> guard(lock);
      ++plain;
      if (round % 64 == i) std::this_thread::yield();
    }
  });
  EXPECT_EQ(plain, long{kThreads} * kRounds);
  EXPECT_TRUE(lock.try_lock()) << "free when all have left";
}

void nothing(int) {}

// futex_lock/X1: two sleep, one of them is woken and finds the other still waiting.
TEST(FutexLock, each_of_several_sleepers_is_woken_once_the_one_before_leaves) {
  for (int round = 0; round < 200; ++round) {
    FutexLock lock;
    std::atomic<int> through{0};
    lock.lock();
    test::Team threads(3, [&] {
      lock.lock();
      ++through;
      lock.unlock();
    });
    std::this_thread::yield();
    EXPECT_EQ(through.load(), 0);
    lock.unlock();
    threads.join();
    EXPECT_EQ(through.load(), 3);
  }
}

TEST(FutexLock, a_signal_does_not_let_a_sleeper_in_and_errno_stays) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = nothing;  // without SA_RESTART: the sleep ends with EINTR
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  FutexLock lock;
  std::atomic<bool> is_in{false}, comes{false};
  int seen = 0;
  lock.lock();
  std::thread sleeper([&] {
    errno = EXDEV;
    comes = true;
    lock.lock();
    is_in = true;
    lock.unlock();
    seen = errno;
  });
  while (!comes) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) {
    pthread_kill(sleeper.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  EXPECT_FALSE(is_in);
  lock.unlock();
  sleeper.join();
  EXPECT_TRUE(is_in);
  EXPECT_EQ(seen, EXDEV);
  sigaction(SIGUSR1, &before, nullptr);
}

// Each waits for what the other one changes. A notification that comes between the waiter's unlock and its sleep must
// not be lost, or both sleep for ever.
TEST(Condition, no_notification_is_lost) {
  constexpr int kRounds = 30000;
  FutexLock lock;
  Condition changed;
  int turn = 0;
  const auto take_turns = [&](int own) {
    for (int round = 0; round < kRounds; ++round) {
      const std::lock_guard<FutexLock> guard(lock);
      while (turn % 2 != own) changed.wait(lock);
      ++turn;
      changed.notify_all();
    }
  };
  std::thread other(take_turns, 1);
  take_turns(0);
  other.join();
  EXPECT_EQ(turn, 2 * kRounds);
}

// One that asks is awake while the other one is on its way to sleep.
TEST(Condition, a_notification_before_the_sleep_is_not_lost) {
  constexpr int kRounds = 30000;
  FutexLock lock;
  Condition changed;
  std::atomic<int> asked{0};
  int answered = 0;
  std::thread waiter([&] {
    for (int round = 1; round <= kRounds; ++round) {
      const std::lock_guard<FutexLock> guard(lock);
      asked = round;
      while (answered != round) changed.wait(lock);
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    while (asked != round) std::this_thread::yield();
    const std::lock_guard<FutexLock> guard(lock);
    answered = round;
    changed.notify_all();
  }
  waiter.join();
  EXPECT_EQ(answered, kRounds);
}

// A thread that waits for a time uses no processor meanwhile. It may wake early, but not all the time.
TEST(Condition, a_wait_for_a_time_sleeps) {
  using Clock = std::chrono::steady_clock;
  FutexLock lock;
  Condition changed;
  const std::lock_guard<FutexLock> guard(lock);
  int wakes = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(100); Clock::now() < end; ++wakes) {
    changed.wait_for(lock, std::chrono::milliseconds(20));
  }
  EXPECT_LE(wakes, 50);
}

// A debug build would end at the second lock, whose rank is below that of the first.
TEST(Mutex, a_failed_try_lock_does_not_hold_it) {
  Mutex held(LockRank::leaf), lower(LockRank::cache);
  held.lock();
  std::thread([&] {
    EXPECT_FALSE(held.try_lock());
    const Guard guard(lower);
  }).join();
  held.unlock();
}

}  // namespace
}  // namespace pinrail
