// SPDX-License-Identifier: BSD-3-Clause
// grdma_cache.h - what the pools of one cache_name share: the budget and the order of eviction, never keys.
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  all functions may run together. Never in a hook.
//
// grdma_cache/B1  bytes and count are those of every registration that the device was told of: from before its
//     register_mem until after its deregister_mem, but for one whose place another one took that the device hears of
//     later. They never exceed the limits.
// grdma_cache/B2  The process's epoch (base/lru/epoch.h) rises at each miss and at each search for something to evict,
//     too.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H

#include <pinrail/component.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
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

// What is to be evicted: dead, and off its pool's LRU list. The pool cannot go before it was dismissed.
struct Victim {
  pinrail_registration_t* reg = nullptr;
  Pool* owner = nullptr;
};

// One registration on its way in.
struct Admission {
  pinrail_registration_t* reg;
  bool counted = false;     // as a miss
  bool possible = false;    // evicting would make enough room, as far as that could be seen
  bool impossible = false;  // it would not: nothing is to be evicted for it (R7)
};

class Cache {
 public:
  Cache(const Limits& limits, uint64_t* process_epoch) : epoch_word(process_epoch), limits_(limits), budget_(limits) {}

  const Limits& limits() const { return limits_; }

  uint64_t epoch() const { return epoch::load(epoch_word); }

  Status add_pool(Pool* pool) EXCLUDES(mutex);
  void remove_pool(Pool* pool) EXCLUDES(mutex);

  // Counts the registration in and links it into its pool's lists. If room is lacking, victim is what claim_victim()
  // would say, unless something dead should go first. SUCCESS with a victim: that is dismissed already, and must be
  // told off before the device hears of the new one. TEMP_OUT_OF_RESOURCE: over a limit now; when the device has
  // forgotten the victim, if there is one, it is dismissed by the next call with it. OUT_OF_RESOURCE: over a limit for
  // ever, or no memory for the LRU list.
  Status admit(const pinrail_thread_t* thread, Pool* pool, Admission* admission, Victim* victim) EXCLUDES(mutex);
  // The reverse, once the device has forgotten it.
  void dismiss(Pool* pool, pinrail_registration_t* reg) EXCLUDES(mutex);

  // The least recently used idle registration that a call into asker may give back; none if none is idle.
  Victim claim_victim(const Pool* asker) EXCLUDES(mutex);

  // The same of one pool, of what was not used after that epoch; what was found held is not looked at again.
  Victim claim_of(Pool* pool, uint64_t now) EXCLUDES(mutex);

  // Whether other threads are giving something back right now; if so, waits a moment for it.
  bool wait_for_release(const Pool* asker) EXCLUDES(mutex);

  // Whether anything is referenced or just being registered, apart from the asker's own.
  bool anything_held(const pinrail_registration_t* own) EXCLUDES(mutex);

  Usage usage() const EXCLUDES(mutex);
  // For a forked child, where nobody changes it, and the lock may be held for ever.
  uint64_t peak_bytes_unlocked() const NO_THREAD_SAFETY_ANALYSIS { return budget_.usage().peak_bytes; }
  // Unique bytes of all registrations that the device was told of. May throw bad_alloc.
  uint64_t pinned_bytes() const EXCLUDES(mutex);

  // The pools of the asker's cache whose gc list a call into asker may drain; at most room. Each is visited: its
  // destroy() waits until its visitors_ are counted down again.
  size_t reachable_pools(const Pool* asker, Pool** pools_out, size_t room) EXCLUDES(mutex);

  // Of the process; never NULL.
  uint64_t* const epoch_word;

  // "cache" in lock_rank.h. Public: each pool's LRU list and list of registrations is guarded by it.
  mutable Mutex mutex{LockRank::cache};
  Condition released;  // something was dismissed

 private:
  bool could_fit(const Pool* asker, uint64_t bytes) const REQUIRES(mutex);
  void dismiss_locked(Pool* pool, pinrail_registration_t* reg) REQUIRES(mutex);
  void link(Pool* pool, pinrail_registration_t* reg) REQUIRES(mutex);
  Pool* oldest_pool(const Pool* asker, uint64_t now) const REQUIRES(mutex);
  Victim claim_locked(const Pool* asker) REQUIRES(mutex);
  bool anything_dead(const pinrail_thread_t* thread, const Pool* asker) const REQUIRES(mutex);

  const Limits limits_;
  mpool::Budget budget_ GUARDED_BY(mutex);
  size_t waiters_ GUARDED_BY(mutex) = 0;  // for a release
  std::vector<Pool*> pools_ GUARDED_BY(mutex);
};

}  // namespace pinrail::grdma

#endif
