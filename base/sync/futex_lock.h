// SPDX-License-Identifier: BSD-3-Clause
// futex_lock.h - a mutex in one word, whose usual case is two instructions of the caller's own.
//
// The C library's takes some thirty more and a call, each way, and a miss takes four of them.
//
// Threads  any. Not recursive, not fair, not robust: as std::mutex.
// Hook     all functions; errno stays as it was.
//
// futex_lock/X1  word_ is kFree, kHeld, or kAwaited: held, and somebody may sleep. Who has slept takes it as kAwaited,
//     for he does not know whether he was the only one; so who leaves it so wakes one.
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

// The system call; no cancellation point, and errno stays as it was. Wakes and sleeps as the kernel likes: whoever
// comes back looks again. time: how long to sleep at most; NULL: until woken.
inline void futex_call(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* time) {
  const int kept = errno;
  syscall(SYS_futex, word, operation, value, time, nullptr, 0);
  errno = kept;
}

class FutexLock {
 public:
  constexpr FutexLock() = default;
  FutexLock(const FutexLock&) = delete;
  FutexLock& operator=(const FutexLock&) = delete;

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

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kAwaited = 2;

  __attribute__((noinline, cold)) void wait() {
    // An exchange that finds it free has taken it. acquire: as try_lock().
    while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      futex_call(&word_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr);
    }
  }
  __attribute__((noinline, cold)) void wake_one() { futex_call(&word_, FUTEX_WAKE_PRIVATE, 1, nullptr); }

  std::atomic<uint32_t> word_{kFree};
};

}  // namespace pinrail

#endif
