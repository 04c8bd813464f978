// SPDX-License-Identifier: BSD-3-Clause
// gpu_cache.h - what pools of GPU memory of one cache_name share: a lock, a budget and an exact LRU order. Never keys.
//
// Owns     itself, while it has pools. Not the pools, not the registrations.
// Threads  `mutex` guards every field. It is never taken in a hook or by a hit.
//
// gpu_cache/B1  The budget counts every registration that the registrar knows, from before register_mem until after
//     deregister_mem. It never exceeds the limits.
// gpu_cache/B2  The LRU list has every indexed registration that is idle and stays so, in the order of its last
//     releases; the thread that made the last release may still be about to enter it. A referenced one that is met in
//     the list leaves it, and returns with its last release.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_CACHE_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_CACHE_H

#include <pinrail/component_mpool.h>

#include <atomic>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/sync/lock.h"
#include "framework/mpool/budget.h"
#include "framework/mpool/caches_of.h"

namespace pinrail::gpu_pool {

class Pool;
struct Peer;

// A pool's own data of a registration, guarded by the cache lock.
struct Area {
  Peer* peer;
  pinrail_registration_t* previous;  // in the list of its peer
  pinrail_registration_t* next;
  pinrail_registration_t* older;  // in the LRU list
  pinrail_registration_t* newer;  // in the LRU list, or in a list of Victims
  uint64_t events_before;         // the pool's events_ when it was linked
  bool is_indexed;                // in the pool's table
  bool is_listed;                 // in the LRU list
};
static_assert(sizeof(Area) <= PINRAIL_AREA_LARGE, "the library gives so much");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }
inline pinrail_handle_t handle_of(pinrail_registration_t* reg) { return {reg, generation_of(reg)}; }

// The identity of the memory: all that a request is compared with, in one line behind the registrar's tail. Written
// before the registration is indexed; a hit reads it while it holds a reference.
struct alignas(64) Identity {
  uint64_t start;
  uintptr_t base;  // in its owner's address space
  size_t length;
  uint64_t id;
  uint64_t segment;
  uint64_t slot_word;           // value of the slot's word while the memory is allocated
  std::atomic<uint64_t>* slot;  // the slot's word; NULL: none
  uint32_t pid;
};
static_assert(sizeof(Identity) == 64, "one line");

inline size_t tail_with_identity(size_t tail_size) { return (tail_size + 63) / 64 * 64 + sizeof(Identity); }
inline Identity& identity_of(pinrail_registration_t* reg) {
  return *reinterpret_cast<Identity*>(reinterpret_cast<char*>(reg + 1) + reg->tail_size - sizeof(Identity));
}
inline const Identity& identity_of(const pinrail_registration_t* reg) {
  return identity_of(const_cast<pinrail_registration_t*>(reg));
}

// A doubly linked list through the areas.
class LruList {
 public:
  pinrail_registration_t* oldest() const { return oldest_; }

  void push_newest(pinrail_registration_t* reg) {
    Area& area = area_of(reg);
    area.older = newest_;
    area.newer = nullptr;
    area.is_listed = true;
    (newest_ != nullptr ? area_of(newest_).newer : oldest_) = reg;
    newest_ = reg;
  }

  // Does nothing if it is not in the list.
  void remove(pinrail_registration_t* reg) {
    Area& area = area_of(reg);
    if (!area.is_listed) return;
    area.is_listed = false;
    (area.older != nullptr ? area_of(area.older).newer : oldest_) = area.newer;
    (area.newer != nullptr ? area_of(area.newer).older : newest_) = area.older;
  }

 private:
  pinrail_registration_t* oldest_ = nullptr;
  pinrail_registration_t* newest_ = nullptr;
};

using mpool::Limits;

struct Cache {
  explicit Cache(const Limits& wanted) : budget(wanted), limits_(wanted) {}
  const Limits& limits() const { return limits_; }

  Mutex mutex{LockRank::cache};
  Condition changed;  // a registration was closed, or a pending request ended
  mpool::Budget budget GUARDED_BY(mutex);
  LruList lru_list GUARDED_BY(mutex);
  uint64_t closing GUARDED_BY(mutex) = 0;  // owned by a thread, and its deregister_mem has not returned

 private:
  const Limits limits_;
};

using Caches = mpool::CachesOf<Cache>;

}  // namespace pinrail::gpu_pool

#endif
