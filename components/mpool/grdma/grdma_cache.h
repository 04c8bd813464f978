// SPDX-License-Identifier: BSD-3-Clause
// grdma_cache.h - what the pools of one cache_name share: the budget and the order of eviction, never keys (R11).
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  all functions may run together. Never in a hook. No registrar is called here.
//
// grdma_cache/B1  The budget counts every registration that the device knows: from before its register_mem until after
//     its deregister_mem. It does not count a victim whose place another one of its pool has taken; that one is
//     deregistered before the other is registered.
// grdma_cache/B2  A pool is not destroyed while a call into another pool of the cache has one of its registrations, or
//     drains it: Pool::visitors_ counts these, from under the cache lock on.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H

#include <pinrail/component_mpool.h>

#include <vector>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/registration/shortcut.h"
#include "base/sync/assert_held.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_registrations.h"
#include "framework/mpool/budget.h"
#include "framework/mpool/messages.h"

namespace pinrail::grdma {

class Pool;

using mpool::Limits;
using mpool::Usage;

// What is to be evicted: dead, and the caller's.
struct Victim {
  pinrail_registration_t* reg = nullptr;
  Pool* owner = nullptr;
};

// How a request for a place in the budget ended.
enum class Admission : uint8_t {
  admitted,      // it has its place. If there is a victim, it has lost its own, and is to be deregistered first
  evict_first,   // there is a victim: when it was given back there may be room
  release_near,  // there is no room, but something is dead or is being given back
  nothing_idle,  // there is no room, and evicting would not make enough (R7)
  never          // it can never fit, or there is no memory
};

class Cache {
 public:
  Cache(const Limits& limits, char* const* chunks) : budget_(limits), limits_(limits), registrations_(chunks) {}

  const Limits& limits() const { return limits_; }
  // Whether a request may be refused because of what is registered already.
  bool may_refuse_bytes() const { return limits_.bytes != UINT64_MAX && !limits_.bounds_idle_only; }

  // The pool's number here; OUT_OF_RESOURCE: no memory, or too many pools.
  Status add_pool(Pool* pool, uint16_t* number_out) EXCLUDES(mutex);
  void remove_pool(uint16_t number) EXCLUDES(mutex);

  // What a request knows of its earlier tries.
  struct Tries {
    bool is_possible = false;       // evicting would make enough room, as far as that could be seen
    bool ignores_releases = false;  // neither a drain nor waiting has helped
  };
  // Asks for the registration's place in the budget.
  Admission admit(Pool* asker, pinrail_registration_t* reg, Tries* tries, Victim* victim_out) EXCLUDES(mutex);
  // The same for what is wider than its request: nothing is evicted, and half of the limit stays free for what is asked
  // for.
  bool admit_wider(pinrail_registration_t* reg) EXCLUDES(mutex);
  // The reverse, once the device has deregistered what was being given back.
  void dismiss(pinrail_registration_t* const* regs, size_t count) EXCLUDES(mutex);

  // The next idle registration of the pools that a call into asker may evict from; none if none is idle.
  Victim retire_next(Pool* asker) EXCLUDES(mutex);
  // The last reference of a registration was dropped that an evictor had found referenced.
  void unpark(pinrail_handle_t handle) EXCLUDES(mutex) {
    Guard guard(mutex);
    registrations_.unpark(handle);
  }

  // A thread gives registrations back: begin comes before they are deregistered, and dismiss() ends it. relaxed: others
  // look at it under the lock that dismiss() takes.
  void begin_release(size_t count) { releasing_.fetch_add(count, std::memory_order_relaxed); }
  // Waits a moment if other threads are giving something back right now; false if none is.
  bool wait_for_release() EXCLUDES(mutex);
  // Whether any but `own` is referenced or pending.
  bool is_any_held(const pinrail_registration_t* own) const EXCLUDES(mutex);

  Usage usage() const EXCLUDES(mutex);
  // Takes no lock, which may be held for ever in a forked child.
  uint64_t peak_bytes() const NO_THREAD_SAFETY_ANALYSIS { return budget_.peak_bytes(); }
  // Unique bytes of all registrations that the device knows. May throw bad_alloc.
  uint64_t pinned_bytes() const EXCLUDES(mutex);

  // Takes what is dead off the pool's gc list, at most so many: it is being given back from now on.
  size_t take_dead(Pool* pool, pinrail_registration_t** regs_out, size_t most) EXCLUDES(mutex);
  // The pools of the cache that have something dead and that a call into asker may drain; at most room. The caller ends
  // each one's visit.
  size_t visit_dead(const Pool* asker, Pool** pools_out, size_t room) EXCLUDES(mutex);

  // Counts the pool's referenced registrations.
  void count_referenced(const Pool* pool, mpool::Referenced* referenced) const EXCLUDES(mutex);
  // Some of the pool's registrations, which stay in: those from *place downwards, which goes on to the next ones.
  size_t next_of(const Pool* pool, size_t* place, pinrail_registration_t** regs_out, size_t room) const EXCLUDES(mutex);
  // The same of those that are idle: they are dead and the caller's, and being given back from now on. They count as
  // evictions.
  size_t retire_of(Pool* pool, size_t* place, pinrail_registration_t** regs_out, size_t room) EXCLUDES(mutex);
  const char* check(const Pool* pool) const EXCLUDES(mutex);

  // "cache" in lock_rank.h. Public: it guards the rest of each pool's gc list, too.
  alignas(64) mutable Mutex mutex{LockRank::cache};
  Condition released;  // something was dismissed, or a visit has ended

 private:
  // For functions that are called under the lock and do not say so. Debug builds look whether the thread holds it.
  void assert_held() const ASSERT_CAPABILITY(mutex) { assert_rank_held(LockRank::cache); }
  Pool* owner_of_locked(const pinrail_registration_t* reg) const REQUIRES(mutex) { return pools_[area_of(reg).owner]; }
  bool may_evict_locked(const Pool* asker, const pinrail_registration_t* reg) const REQUIRES(mutex);
  bool could_fit_locked(const Pool* asker, uint64_t bytes) REQUIRES(mutex);
  Victim retire_next_locked(Pool* asker) REQUIRES(mutex);
  void add_locked(pinrail_registration_t* reg) REQUIRES(mutex);
  template <typename Is>
  size_t next_where_locked(size_t* place, pinrail_registration_t** regs_out, size_t room, Is&& is) const
      REQUIRES(mutex);
  bool is_any_dead_locked(const Pool* asker) const REQUIRES(mutex);

  std::atomic<size_t> releasing_{0};
  size_t waiters_ GUARDED_BY(mutex) = 0;  // for a release
  mpool::Budget budget_ GUARDED_BY(mutex);
  std::vector<Pool*> pools_ GUARDED_BY(mutex);  // by number; NULL: the number is free
  const Limits limits_;
  Registrations registrations_ GUARDED_BY(mutex);
};

}  // namespace pinrail::grdma

#endif
