// SPDX-License-Identifier: BSD-3-Clause
// futex_lock.h - a mutex in one word; without contention lock() and unlock() are one locked instruction each, inlined.
//
// The C library's mutex takes some thirty instructions more and a call, each way. A miss takes four locks.
//
// Threads  All functions may run together. As std::mutex it is neither recursive, nor fair, nor robust.
// Hook     All functions. They keep errno.
//
// futex_lock/X1  word_ is kFree, kHeld, or kAwaited: held, and threads may be asleep. A thread that has slept takes the
//     lock as kAwaited, because it does not know whether others sleep too. An unlock of a kAwaited lock wakes one
//     thread.
#ifndef PINRAIL_BASE_SYNC_FUTEX_LOCK_H
#define PINRAIL_BASE_SYNC_FUTEX_LOCK_H

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace pinrail {

// The futex system call. It is no cancellation point and keeps errno. It may return spuriously, so the caller tests its
// condition again. time: the longest sleep; NULL: no limit.
inline void futex_call(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* time) {
  const int kept = errno;
  syscall(SYS_futex, word, operation, value, time, nullptr, 0);
  errno = kept;
}

class FutexLock {
 public:
  void lock() {
    if (!try_lock()) wait();
  }
  bool try_lock() {
    uint32_t free = kFree;
    // acquire: pairs with the release in unlock().
    return word_.compare_exchange_strong(free, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() {
    if (word_.exchange(kFree, std::memory_order_release) == kAwaited) wake_one();
  }
  // Hints, for the holder of a lock and for a thread that has just given one back. relaxed: no data depends on them.
  bool is_awaited() const { return word_.load(std::memory_order_relaxed) == kAwaited; }
  bool is_free() const { return word_.load(std::memory_order_relaxed) == kFree; }

  // Between two looks at what another thread will change soon.
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kAwaited = 2;

  // Holds are shorter than falling asleep and being woken, so it looks some more times first, unless others sleep.
  __attribute__((noinline, cold)) void wait() {
    constexpr int kLooks = 64;
    for (int looks = 0; looks < kLooks; ++looks) {
      const uint32_t seen = word_.load(std::memory_order_relaxed);
      if (seen == kFree && try_lock()) return;
      if (seen == kAwaited) break;
      pause();
    }
    // An exchange that returns kFree has taken the lock. acquire: as in try_lock().
    while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      futex_call(&word_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr);
    }
  }
  __attribute__((noinline, cold)) void wake_one() { futex_call(&word_, FUTEX_WAKE_PRIVATE, 1, nullptr); }

  std::atomic<uint32_t> word_{kFree};
};

}  // namespace pinrail

#endif
