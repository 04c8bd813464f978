// SPDX-License-Identifier: BSD-3-Clause
// grdma_cache.h - what the pools of one cache_name share: the budget and the order of eviction, never keys.
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  all functions may run together. Never in a hook.
//
// B1  bytes and count are those of every registration that the device was told of: from before its register_mem until
//     after its deregister_mem. They never exceed the limits.
// B2  epoch only rises; it rises at each miss and at each search for something to evict.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_CACHE_H

#include <pinrail/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/core/lock.h"
#include "base/core/span.h"
#include "base/core/status.h"

namespace pinrail::grdma {

class Pool;

struct Limits {
  uint64_t bytes = UINT64_MAX;
  uint64_t count = UINT64_MAX;
};

struct Usage {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t peak_bytes = 0;
};

class Cache {
 public:
  explicit Cache(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  // relaxed: the epoch orders evictions and nothing else.
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  void advance_epoch() { epoch_.fetch_add(1, std::memory_order_relaxed); }

  Status join(Pool* pool) EXCLUDES(mutex);
  // True if it was the last one.
  bool leave(Pool* pool) EXCLUDES(mutex);

  // Counts the registration in and links it into its pool's list. TEMP_OUT_OF_RESOURCE: over a limit now;
  // OUT_OF_RESOURCE: over a limit for ever, or no memory for the LRU list.
  Status admit(Pool* pool, pinrail_registration_t* reg) EXCLUDES(mutex);
  // The reverse, once the device has forgotten it.
  void dismiss(Pool* pool, pinrail_registration_t* reg) EXCLUDES(mutex);

  // The least recently used idle registration that a call into asker may give back: dead, and off the LRU list;
  // NULL if none is idle. owner_out: its pool, which cannot go before the registration was dismissed.
  pinrail_registration_t* claim_victim(const Pool* asker, Pool** owner_out) EXCLUDES(mutex);

  // Whether other threads are giving something back right now; if so, waits a moment for it.
  bool wait_for_release(const Pool* asker) EXCLUDES(mutex);

  // Whether anything is referenced or just being registered, apart from the asker's own.
  bool anything_held(const pinrail_registration_t* own) EXCLUDES(mutex);

  Usage usage() const EXCLUDES(mutex);
  // Unique bytes of all registrations that the device was told of. May throw bad_alloc.
  uint64_t pinned_bytes() const EXCLUDES(mutex);

  // The pools of the asker's cache whose gc list a call into asker may drain; at most room. Each is visited: its
  // destroy() waits until its visitors_ are counted down again.
  size_t reachable_pools(const Pool* asker, Pool** pools_out, size_t room) EXCLUDES(mutex);

  // "cache" in lock_rank.h. Public: each pool's LRU list and list of registrations is guarded by it.
  mutable Mutex mutex{LockRank::cache};
  Condition released;  // something was dismissed

 private:
  Pool* oldest_pool(const Pool* asker, uint64_t now) const REQUIRES(mutex);

  const Limits limits_;
  std::atomic<uint64_t> epoch_{1};
  Usage usage_ GUARDED_BY(mutex);
  std::vector<Pool*> pools_ GUARDED_BY(mutex);
};

}  // namespace pinrail::grdma

#endif
