// SPDX-License-Identifier: BSD-3-Clause
// exact_cache.h - what pools of GPU memory of one cache_name share: lock, budget, exact order of eviction. Never keys.
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  `mutex` guards every field but the clock. Never taken in a hook.
//
// B1  usage counts every registration that the registrar was told of: from before its register_mem until after its
//     deregister_mem. It never exceeds the limits.
// B2  Each use (a hit, a release) has a tick of the clock of its own, so the least recently used one is known exactly.
//     On the LRU list stand the indexed ones that stay when nobody holds them, held or not.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_CACHE_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_CACHE_H

#include <pinrail/component.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/core/lock.h"
#include "base/core/lru_list.h"
#include "base/core/registration_arena.h"

namespace pinrail::exact {

class Pool;
struct Peer;

// What a pool keeps of a registration. All but `previous` and `next` are written before it is in the table.
struct Area {
  Peer* peer;
  uintptr_t base;  // as its owner knows it
  uint64_t id;
  std::atomic<uint64_t>* slot;  // NULL: it has none
  uint64_t life;                // of the slot's word
  uint32_t lru_place;
  pinrail_registration_t* previous;  // of the same peer
  pinrail_registration_t* next;
};
static_assert(sizeof(Area) <= arena::area_bytes(PINRAIL_COUNTING_SHARED), "it fits");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }

struct LruPlaceOf {
  uint32_t& operator()(pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
  uint32_t operator()(const pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
};

struct Limits {
  uint64_t bytes = UINT64_MAX;
  uint64_t count = UINT64_MAX;
};

struct Usage {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t peak_bytes = 0;
};

struct Cache {
  explicit Cache(const Limits& wanted) : limits(wanted) {}

  Mutex mutex{LockRank::cache};
  Condition changed;  // something was closed, or a pending one is settled
  const Limits limits;
  Usage usage GUARDED_BY(mutex);
  LruList<LruPlaceOf> lru_list GUARDED_BY(mutex);
  uint64_t closing GUARDED_BY(mutex) = 0;  // left the index, and the registrar has not answered yet
  size_t pools GUARDED_BY(mutex) = 0;
  std::atomic<uint64_t> clock{0};

  uint64_t tick() { return clock.fetch_add(1, std::memory_order_relaxed) + 1; }  // relaxed: only distinct and rising
};

// A component's caches by name.
struct Caches {
  Mutex mutex{LockRank::caches};
  std::map<std::string, std::unique_ptr<Cache>> by_name GUARDED_BY(mutex);
};

}  // namespace pinrail::exact

#endif
