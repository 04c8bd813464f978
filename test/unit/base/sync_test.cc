// SPDX-License-Identifier: BSD-3-Clause
// sync_test.cc - the gate, deferred events, and the lock of futexes.
#include "base/sync/gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <mutex>
#include <thread>

#include "base/core/compiler.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/futex_lock.h"
#include "base/sync/lock.h"
#include "base/sync/own_threads.h"
#include "test/support/cases.h"
#include "test/support/threads.h"

namespace {

bool knows_no_wiping = false;  // as kernels before 4.14
}

extern "C" __attribute__((visibility("default"))) int madvise(void* at, size_t length, int advice) noexcept {
  if (knows_no_wiping && advice == MADV_WIPEONFORK) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_madvise, at, length, advice));
}

namespace pinrail {
namespace {

// Before any other: the page is prepared once in a process.
TEST(Gate, a_forked_child_finds_it_shut_also_where_the_kernel_wipes_no_pages) {
  EXPECT_EQ(
      test::exit_status_of([] {
        knows_no_wiping = true;
        gate::open();
        if (!gate::claim_child() || !gate::is_open()) return 1;
        return test::exit_status_of([] { return !gate::is_open() && gate::is_child() && gate::claim_child() ? 0 : 1; });
      }),
      0);
}

TEST(Gate, is_open_once_it_was_opened_but_for_the_time_until_the_last_holder_lets_go) {
  EXPECT_FALSE(gate::is_open() || gate::is_child());
  for (int i = 0; i < 2; ++i) {
    gate::open();
    EXPECT_TRUE(gate::is_open());
  }
  gate::hold_hook();
  gate::hold_hook();
  gate::release_hook();
  EXPECT_FALSE(gate::is_open() || gate::is_child());
  std::atomic<bool> released{false};
  std::thread waiter([&] {
    gate::wait_until_released();
    EXPECT_TRUE(released.load());
  });
  usleep(20000);  // so that the waiter naps, too
  released.store(true);
  gate::release_hook();
  waiter.join();
  EXPECT_TRUE(gate::is_open());
}

TEST(Gate, a_forked_child_finds_it_shut_and_can_open_it_for_itself) {
  gate::open();
  EXPECT_EQ(test::exit_status_of([] {
              const bool was_shut = !gate::is_open() && gate::is_child();
              gate::wait_until_released();  // no thread could release it
              gate::open();
              return was_shut && gate::is_open() && !gate::is_child() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(gate::is_open());
}

}  // namespace
}  // namespace pinrail

// deferred_hook: a signal handler that causes a memory event comes at each instruction of the delivery of another one.

#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)

namespace pinrail {
namespace {

HookMutex mutex{LockRank::index, deferred::kLocks};

// How often the two events were delivered: the first one is deferred, the second one is the handler's.
int delivered[2];
void note_hook(void* event, uintptr_t, size_t) { ++*static_cast<int*>(event); }

// As a hook: it takes a lock, unless its thread holds one. Another handler interrupts it there, and defers.
void handle_signal(int) {
  const bool is_held = deferred::must_defer_hook();
  if (!is_held) mutex.lock();
  deferred::defer_hook(note_hook, &delivered[1], 4096, 4096);
  if (!is_held) mutex.unlock();
}

// Exit statuses of the child: what it found after the signal, or, kGateOpen, before it (E1).
enum Found : int { kEventLost = 1, kGateShut, kGateOpen, kNotTraced };

// Shared with the tracing parent: whether the child delivers.
std::atomic<bool>* delivers;

// Stops before each delivery, so that the parent chooses the instruction at which the signal comes.
[[noreturn]] void deliver_for_ever() {
  struct sigaction action {};
  action.sa_handler = handle_signal;
  sigaction(SIGUSR1, &action, nullptr);
  gate::open();
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTraced);
  for (;;) {
    delivered[0] = delivered[1] = 0;
    mutex.lock();
    deferred::defer_hook(note_hook, &delivered[0], 4096, 4096);
    if (gate::is_open()) _exit(kGateOpen);
    delivers->store(true);
    raise(SIGSTOP);
    mutex.unlock();
    delivers->store(false);
    if (delivered[0] == 0 || delivered[1] == 0) _exit(kEventLost);
    if (!gate::is_open()) _exit(kGateShut);
  }
}

// Lets the child run so many instructions. False: it ended.
bool run_instructions(pid_t child, int count, int* status_out) {
  for (int i = 0; i < count && delivers->load(); ++i) {
    ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
    waitpid(child, status_out, 0);
    if (!WIFSTOPPED(*status_out)) return false;
  }
  return true;
}

TEST(Deferred, an_event_may_come_at_any_instruction_of_the_delivery_of_another) {
  delivers =
      new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<bool>(false);
  const pid_t child = fork();
  if (child == 0) deliver_for_ever();
  int status = 0, instructions = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotTraced) GTEST_SKIP() << "no process may be traced here";
  while (WIFSTOPPED(status)) {
    if (!run_instructions(child, ++instructions, &status) || !delivers->load()) break;
    ptrace(PTRACE_CONT, child, nullptr, SIGUSR1);
    waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFSTOPPED(status)) << "at instruction " << instructions << ": status " << WEXITSTATUS(status);
  EXPECT_GT(instructions, 50);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

}  // namespace
}  // namespace pinrail

#endif

namespace pinrail {
namespace {

// A handler that forks after it has deferred an event: the child goes on where the handler came.
TEST(Deferred, a_child_delivers_no_event_of_its_parent_and_its_gate_opens) {
  static HookMutex held{LockRank::index, deferred::kLocks};
  static int count = 0;
  gate::open();
  held.lock();
  deferred::defer_hook([](void*, uintptr_t, size_t) { ++count; }, nullptr, 4096, 4096);
  EXPECT_EQ(test::exit_status_of([] {
              held.unlock();
              if (count != 0) return 1;
              if (!gate::claim_child()) return 2;
              deferred::fork_reinit();
              gate::open();
              return gate::is_open() ? 0 : 3;
            }),
            0);
  held.unlock();
  EXPECT_EQ(count, 1);
  EXPECT_TRUE(gate::is_open());
}

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

// futex_lock/X1: two sleep, one of them is woken and finds the other still waiting.
TEST(FutexLock, each_of_several_sleepers_is_woken_once_the_one_before_leaves) {
  for (int round = 0; round < 200; ++round) {
    FutexLock lock;
    std::atomic<int> through{0};
    lock.lock();
    test::Team threads(3, [&] {
      const std::lock_guard<FutexLock> guard(lock);
      ++through;
    });
    std::this_thread::yield();
    EXPECT_EQ(through.load(), 0);
    lock.unlock();
    threads.join();
    EXPECT_EQ(through.load(), 3);
  }
}

void nothing(int) {}

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

// The one that answers is awake while the other one is between its unlock and its sleep.
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

// Its handlers may wait for what the thread has announced that is to work.
TEST(OwnThreads, work_waits_for_a_fork_but_not_for_ever_and_not_inside_its_own) {
  const auto began = std::chrono::steady_clock::now();
  own_threads::leave_for_fork();
  own_threads::before_fork(false);
  { const own_threads::Work inside_the_fork; }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(4));
  std::thread([] { const own_threads::Work of_another_thread; }).join();
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::seconds(4));
  own_threads::after_fork();
  std::thread([] { const own_threads::Work behind_it; }).join();
}

}  // namespace
}  // namespace pinrail
