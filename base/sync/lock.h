// SPDX-License-Identifier: BSD-3-Clause
// lock.h - mutexes that know their rank (lock_rank.h).
//
// Debug builds keep a mask of the ranks that a thread holds. They abort when a lock is taken whose rank is not above
// all ranks held, and when a thread unlocks a lock that it does not hold. Each shared object has a mask of its own,
// because components use no symbols of the library; so nesting is checked within one object.
//
// Hook     All functions but wait(), wait_for() and sleep(). A hook takes a lock only if hooks_may_take() permits its
//          rank; debug builds abort otherwise.
#ifndef PINRAIL_BASE_SYNC_LOCK_H
#define PINRAIL_BASE_SYNC_LOCK_H

#include <pinrail/component.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/core/compiler.h"
#include "base/sync/futex_lock.h"
#include "base/sync/hook_scope.h"
#include "base/sync/lock_rank.h"

// Names for the attributes of Clang's -Wthread-safety. They are empty under other compilers.
#if defined(__clang__)
#define PINRAIL_TSA(x) __attribute__((x))
#else
#define PINRAIL_TSA(x)
#endif

#define CAPABILITY(x) PINRAIL_TSA(capability(x))
#define SCOPED_CAPABILITY PINRAIL_TSA(scoped_lockable)
#define GUARDED_BY(x) PINRAIL_TSA(guarded_by(x))
#define REQUIRES(...) PINRAIL_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) PINRAIL_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) PINRAIL_TSA(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) PINRAIL_TSA(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) PINRAIL_TSA(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(x) PINRAIL_TSA(assert_capability(x))
#define NO_THREAD_SAFETY_ANALYSIS PINRAIL_TSA(no_thread_safety_analysis)

namespace pinrail {

#ifdef PINRAIL_DEBUG
// initial-exec: hooks take locks inside allocators, and the first access to any other kind of TLS may allocate.
inline __thread uint64_t held_ranks __attribute__((tls_model("initial-exec"))) = 0;

constexpr uint64_t rank_bit(LockRank rank) { return uint64_t{1} << static_cast<unsigned>(rank); }
inline void abort_unless(bool is_right, LockRank rank, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "pinrail: lock rank %u %s\n", static_cast<unsigned>(rank), what);
  std::abort();
}
inline void rank_enter(LockRank rank) {
  if (!hooks_may_take(rank)) abort_in_hook_scope("a lock is taken that API code holds across allocations");
  abort_unless(held_ranks < rank_bit(rank), rank, "taken while one of the same or a higher rank is held");
  held_ranks |= rank_bit(rank);
}
inline void rank_leave(LockRank rank) {
  abort_unless((held_ranks & rank_bit(rank)) != 0, rank, "unlocked by a thread that does not hold it");
  held_ranks &= ~rank_bit(rank);
}
// For code that holds a lock under another name than the one that a function requires it by. Clang's analysis believes
// the caller; a build with --enable-debug looks whether the thread holds a lock of that rank.
inline void assert_rank_held(LockRank rank) {
  abort_unless((held_ranks & rank_bit(rank)) != 0, rank, "is not held where it must be");
}
#else
inline void rank_enter(LockRank) {}
inline void rank_leave(LockRank) {}
inline void assert_rank_held(LockRank) {}
#endif

// ThreadSanitizer and test/model know the C library's mutexes and who waits for them; they do not know FutexLock.
#ifdef PINRAIL_UNDER_THREAD_SANITIZER
struct LockWord : std::mutex {
  static bool is_awaited() { return true; }
  static bool is_free() { return false; }
};
#else
using LockWord = FutexLock;
#endif

// A mutex for start-up and API context. Hooks may take it only inside a HookMutex.
class CAPABILITY("mutex") Mutex {
 public:
  constexpr explicit Mutex(LockRank rank) : rank_(rank) {}

  void lock() ACQUIRE() {
    rank_enter(rank_);
    mutex_.lock();
  }
  bool try_lock() TRY_ACQUIRE(true) {
    rank_enter(rank_);
    if (mutex_.try_lock()) return true;
    rank_leave(rank_);
    return false;
  }
  void unlock() RELEASE() {
    mutex_.unlock();
    rank_leave(rank_);
  }
  // Hints. is_awaited(): threads sleep until the caller, which holds the mutex, releases it. is_free(): the mutex is
  // not held.
  bool is_awaited() const { return mutex_.is_awaited(); }
  bool is_free() const { return mutex_.is_free(); }

 private:
  LockWord mutex_;
  const LockRank rank_;
};

using HookDepth = pinrail_hook_depth_t;

// The two functions by which a lock that hooks take counts itself for its thread (deferred_hook.h). Components get them
// from the host table. Without them, as in some tests, locks are not counted.
struct HookLocks {
  HookDepth* (*depth_hook)(void) = nullptr;  // the calling thread's depth
  void (*deliver_hook)(void) = nullptr;      // delivers deferred events; the caller holds no lock that hooks take

  static HookLocks of(const pinrail_host_t* host) {
    return host == nullptr ? HookLocks{} : HookLocks{host->depth_hook, host->deliver_deferred_hook};
  }
};

// A mutex that hooks take. The holder's thread counts it, so that a hook in a signal handler that interrupted this
// thread defers the event instead of waiting for its own thread (deferred_hook.h). A thread that the holder may wait
// for does not sleep for the mutex: between two tries it calls while_waiting_hook. Such a thread is uffd's reader,
// whom a holder waits for when a signal handler unmaps watched memory on the holder's thread.
class CAPABILITY("mutex") HookMutex {
 public:
  constexpr explicit HookMutex(LockRank rank, HookLocks locks = {}) : mutex_(rank), locks_(locks) {}

  void lock() ACQUIRE() NO_THREAD_SAFETY_ANALYSIS {
    HookDepth* const depth = enter();
    if (depth == nullptr || depth->while_waiting_hook == nullptr) {
      mutex_.lock();
    } else {
      while (!mutex_.try_lock()) depth->while_waiting_hook(depth->waiting_arg);
    }
    depth_ = depth;
  }
  void unlock() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
    HookDepth* const depth = depth_;
    mutex_.unlock();
    leave(depth);
  }
  bool is_awaited() const { return mutex_.is_awaited(); }
  bool is_free() const { return mutex_.is_free(); }

 private:
  // Keeps deferred_hook/H1. The fences order accesses for the compiler only: handlers run on this thread.
  HookDepth* enter() const {
    if (locks_.depth_hook == nullptr) return nullptr;
    HookDepth* const depth = locks_.depth_hook();
    ++depth->depth;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return depth;
  }
  // The depth may be 0 already: in a forked child, where deferred::fork_reinit() has cleared it.
  void leave(HookDepth* depth) const {
    if (depth == nullptr) return;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (depth->depth != 0) --depth->depth;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (depth->depth == 0 && depth->waiting != 0) locks_.deliver_hook();
  }

  Mutex mutex_;
  const HookLocks locks_;
  HookDepth* depth_ = nullptr;  // the holder's; guarded by mutex_
};

// Holds a Mutex or a HookMutex for a scope.
template <typename Lock>
class SCOPED_CAPABILITY Guard : NonCopyable {
 public:
  explicit Guard(Lock& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Guard() RELEASE() { mutex_.unlock(); }

 private:
  Lock& mutex_;
};

// A condition variable. Its waits release the mutex, and with it the rank, while they sleep. They may wake spuriously:
// the caller tests its condition in a loop. std::condition_variable_any is not used, because it has a destructor and
// its waits are cancellation points (R10).
class Condition {
 public:
  template <typename Lock>
  void wait(Lock& mutex) REQUIRES(mutex) {
    sleep(mutex, nullptr);
  }
  // As wait(), but returns at the latest after `time`.
  template <typename Lock>
  void wait_for(Lock& mutex, std::chrono::microseconds time) REQUIRES(mutex) {
    const timespec most = {static_cast<time_t>(time.count() / 1000000),
                           static_cast<long>(time.count() % 1000000) * 1000};
    sleep(mutex, &most);
  }
  // Wakes all waiters. relaxed: the condition itself is changed and read under the mutex.
  void notify_all() {
    word_.fetch_add(1, std::memory_order_relaxed);
    futex_call(&word_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);
  }

 private:
  // A notification between unlock() and the futex call has changed word_, so the kernel returns at once.
  template <typename Lock>
  void sleep(Lock& mutex, const timespec* most) REQUIRES(mutex) {
    const uint32_t seen = word_.load(std::memory_order_relaxed);
    mutex.unlock();
    futex_call(&word_, FUTEX_WAIT_PRIVATE, seen, most);
    mutex.lock();
  }

  std::atomic<uint32_t> word_{0};
};

// As assert_rank_held(), which also tells Clang's analysis that this lock is held.
template <typename Lock>
void assert_held([[maybe_unused]] const Lock& lock, LockRank rank) ASSERT_CAPABILITY(lock) {
  assert_rank_held(rank);
}

}  // namespace pinrail

#endif
