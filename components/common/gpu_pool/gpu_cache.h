// SPDX-License-Identifier: BSD-3-Clause
// cache.h - what pools of GPU memory of one cache_name share: lock, budget, exact order of eviction. Never keys.
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  `mutex` guards every field. Never taken in a hook, nor by a hit.
//
// gpu_cache/B1  usage counts every registration that the registrar was told of: from before its register_mem until
//     after its deregister_mem. It never exceeds the limits.
// gpu_cache/B2  Each release is dated (base/lru/timestamps.h): what is idle was used last when it was released. An
// epoch
//     begins with
// each
//     registration that goes in and each search for something to evict. On the LRU list stand the indexed ones that
//     stay when nobody holds them, held or not.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_CACHE_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_CACHE_H

#include <pinrail/component.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/lru/lru_list.h"
#include "base/lru/timestamps.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/sync/lock.h"
#include "framework/mpool/budget.h"

namespace pinrail::gpu_pool {

class Pool;
struct Peer;

// What a pool keeps of a registration, under the cache lock.
struct Area {
  int64_t kept;  // the library's, of what is dead and held: settle_dead()
  Peer* peer;
  uint32_t lru_place;
  bool is_left_over;                 // claimed by a thread that ended before it was closed; under the cache lock
  pinrail_registration_t* previous;  // of the same peer
  pinrail_registration_t* next;
};
static_assert(sizeof(Area) <= arena::area_bytes(PINRAIL_COUNTING_THREADS), "it fits");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }
inline pinrail_handle_t handle_of(pinrail_registration_t* reg) { return {reg, generation_of(reg)}; }

// Which memory it is: all that a hit compares, in one line behind the registrar's tail. Written before it is in the
// index. From `start` to `slot_word` as in a block, so that they are compared as they lie.
struct alignas(64) Name {
  uint64_t start;
  uintptr_t base;  // as its owner knows it
  size_t length;
  uint64_t id;
  uint64_t segment;
  uint64_t slot_word;           // of the slot's word
  std::atomic<uint64_t>* slot;  // NULL: it has none
  uint32_t pid;
};
static_assert(sizeof(Name) == 64, "one line");

inline size_t tail_with_name(size_t tail_size) { return (tail_size + 63) / 64 * 64 + sizeof(Name); }
inline Name& name_of(pinrail_registration_t* reg) {
  return *reinterpret_cast<Name*>(reinterpret_cast<char*>(reg + 1) + reg->tail_size - sizeof(Name));
}
inline const Name& name_of(const pinrail_registration_t* reg) {
  return name_of(const_cast<pinrail_registration_t*>(reg));
}

struct LruPlaceOf {
  uint32_t& operator()(pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
  uint32_t operator()(const pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
};

using mpool::Limits;
using mpool::Usage;

struct Cache {
  explicit Cache(const Limits& wanted) : limits(wanted) {}

  Mutex mutex{LockRank::cache};
  Condition changed;  // something was closed, or a pending one is settled
  const Limits limits;
  Usage usage GUARDED_BY(mutex);
  LruList<LruPlaceOf> lru_list GUARDED_BY(mutex);
  uint64_t closing GUARDED_BY(mutex) = 0;  // left the index, and the registrar has not answered yet
  size_t pools GUARDED_BY(mutex) = 0;
};

// A component's caches by name.
struct Caches {
  Mutex mutex{LockRank::caches};
  std::map<std::string, std::unique_ptr<Cache>> by_name GUARDED_BY(mutex);
};

}  // namespace pinrail::gpu_pool

#endif
