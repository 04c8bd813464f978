// SPDX-License-Identifier: BSD-3-Clause
// grdma_cache.h - what the pools of one cache_name share: the budget and the order of eviction, never keys.
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  all functions may run together. Never in a hook.
//
// grdma_cache/B1  The budget counts every registration that the device knows: from before its register_mem until after
//     its deregister_mem. It does not count a victim whose place in the budget was taken; that one is deregistered
//     before the one that took its place is registered.
// grdma_cache/B2  The process's epoch (base/lru/epoch.h) rises at each search for something to evict, and, while pools
//     share the cache, after as many misses as a sixteenth of what is registered, too: their evictors' hands compare
//     epochs.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H

#include <pinrail/component_mpool.h>

#include <vector>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/lru/epoch.h"
#include "base/sync/lock.h"
#include "framework/mpool/budget.h"

namespace pinrail::grdma {

class Pool;

using mpool::Limits;
using mpool::Usage;

// What is to be evicted: dead. Its pool is not destroyed before the victim was dismissed.
struct Victim {
  pinrail_registration_t* reg = nullptr;
  Pool* owner = nullptr;
};

// One registration that asks for its place in the budget.
struct Admission {
  pinrail_registration_t* reg = nullptr;
  bool is_counted = false;     // as a miss
  bool is_admitted = false;    // it has its place
  bool is_possible = false;    // evicting would make enough room, as far as that could be seen
  bool is_impossible = false;  // it would not: nothing is to be evicted for it (R7)
  Victim victim;               // claimed for it; not freed yet
};

class Cache {
 public:
  Cache(const Limits& limits, uint64_t* process_epoch) : epoch_word(process_epoch), budget_(limits), limits_(limits) {}

  const Limits& limits() const { return limits_; }

  uint64_t epoch() const { return epoch::load(epoch_word); }

  Status add_pool(Pool* pool) EXCLUDES(mutex);
  void remove_pool(Pool* pool) EXCLUDES(mutex);

  // Adds the registration to the budget and puts it among its pool's. If there is no room and nothing dead that
  // could make some, claims a victim as claim_victim() does.
  // SUCCESS with a victim: it is dismissed already, and the caller deregisters it before it registers the new one.
  // TEMP_OUT_OF_RESOURCE: no room now. If there is a victim, the caller deregisters it before it calls again, and frees
  // it afterwards, because that call dismisses it.
  // OUT_OF_RESOURCE: the registration can never fit, or there is no memory.
  Status admit(const pinrail_thread_t* thread, Pool* pool, Admission* admission) EXCLUDES(mutex);
  // For what found no room, after all that was idle has left: adds it if another thread has made room since, or
  // although it does not fit. False: a limit that was set forbids that.
  bool admit_after_all(Pool* pool, pinrail_registration_t* reg) EXCLUDES(mutex);
  // The reverse, once the device has deregistered it.
  void dismiss(Pool* pool, pinrail_registration_t* const* regs, size_t count) EXCLUDES(mutex);
  void dismiss(Pool* pool, pinrail_registration_t* reg) EXCLUDES(mutex) { dismiss(pool, &reg, 1); }

  // The next idle registration of the pools that a call into asker may evict from; none if none is idle.
  Victim claim_victim(Pool* asker) EXCLUDES(mutex);

  // The same of one pool alone, and only if it was not used after that epoch. What was found held is not claimed again.
  Victim claim_of(Pool* pool, uint64_t now) EXCLUDES(mutex);

  // Waits a moment if other threads are giving something back right now; false if none is.
  bool wait_for_release(const Pool* asker) EXCLUDES(mutex);

  // Whether anything but `own` is referenced or pending.
  bool anything_held(const pinrail_registration_t* own) EXCLUDES(mutex);

  Usage usage() const EXCLUDES(mutex);
  // Takes no lock, which may be held for ever in a forked child.
  uint64_t peak_bytes() const NO_THREAD_SAFETY_ANALYSIS { return budget_.peak_bytes(); }
  // Unique bytes of all registrations that the device knows. May throw bad_alloc.
  uint64_t pinned_bytes() const EXCLUDES(mutex);

  // The pools of the asker's cache that have something dead and that a call into asker may drain; at most room. The
  // caller ends each one's visit (InFlight), which its destroy() waits for.
  size_t visit_dead(const pinrail_thread_t* thread, const Pool* asker, Pool** pools_out, size_t room) EXCLUDES(mutex);

  // Of the process; never NULL.
  uint64_t* const epoch_word;

  // With waiters_ and what changes of the budget it has one line. "cache" in lock_rank.h. Public: it guards the
  // eviction list and the registrations of each pool, too.
  alignas(64) mutable Mutex mutex{LockRank::cache};
  Condition released;  // something was dismissed

 private:
  bool could_fit_locked(const Pool* asker, uint64_t bytes) const REQUIRES(mutex);
  void dismiss_locked(Pool* pool, pinrail_registration_t* reg) REQUIRES(mutex);
  void replace_locked(const Victim& victim, Pool* pool, pinrail_registration_t* reg) REQUIRES(mutex);
  Pool* oldest_pool_locked(const Pool* asker, uint64_t now) const REQUIRES(mutex);
  Victim claim_locked(Pool* asker) REQUIRES(mutex);
  Victim search_locked(const Pool* asker) REQUIRES(mutex);
  bool anything_dead_locked(const pinrail_thread_t* thread, const Pool* asker) const REQUIRES(mutex);
  void count_miss_in_epoch_locked() REQUIRES(mutex);

  size_t waiters_ GUARDED_BY(mutex) = 0;          // for a release
  size_t misses_in_epoch_ GUARDED_BY(mutex) = 0;  // while pools share the cache
  mpool::Budget budget_ GUARDED_BY(mutex);
  std::vector<Pool*> pools_ GUARDED_BY(mutex);
  const Limits limits_;
};

}  // namespace pinrail::grdma

#endif
