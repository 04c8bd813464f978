// SPDX-License-Identifier: BSD-3-Clause
// gpu_cache.h - what pools of GPU memory of one cache_name share: a lock, a budget and an exact LRU order. Never keys.
//
// Owns     itself, while it has pools. Not the pools, not the registrations.
// Threads  `mutex` guards every field. It is never taken in a hook or by a hit.
//
// gpu_cache/B1  The budget counts every registration that the registrar knows, from before register_mem until after
//     deregister_mem. It never exceeds the limits.
// gpu_cache/B2  Each release is dated with an epoch (base/lru/timestamps.h), so an idle registration was last used at
//     its release. A new epoch begins with each insert into the index and each search for a victim. The LRU list holds
//     the indexed registrations that stay without references, referenced or not.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_CACHE_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_CACHE_H

#include <pinrail/component_mpool.h>

#include <atomic>

#include "base/lru/lru_list.h"
#include "base/lru/timestamps.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/sync/lock.h"
#include "framework/mpool/budget.h"
#include "framework/mpool/caches.h"

namespace pinrail::gpu_pool {

class Pool;
struct Peer;

// A pool's own data of a registration, guarded by the cache lock: a line behind its identity.
struct alignas(64) Area {
  Peer* peer;
  uint32_t lru_place;
  bool is_close_deferred;            // claimed, but its thread ended before closing it
  pinrail_registration_t* previous;  // in the list of its peer
  pinrail_registration_t* next;
  uint64_t events_before;  // the pool's events_ when it was linked
};

inline Area& area_of(pinrail_registration_t* reg) {
  return *reinterpret_cast<Area*>(reinterpret_cast<char*>(reg + 1) + reg->tail_size - sizeof(Area));
}
inline const Area& area_of(const pinrail_registration_t* reg) {
  return area_of(const_cast<pinrail_registration_t*>(reg));
}
inline pinrail_handle_t handle_of(pinrail_registration_t* reg) { return {reg, generation_of(reg)}; }

// The identity of the memory: all that a request is compared with, in one line behind the registrar's tail. Written
// before the registration is indexed. The fields from `start` to `slot_word` lie as in a block.
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

inline size_t tail_with_identity(size_t tail_size) {
  return (tail_size + 63) / 64 * 64 + sizeof(Identity) + sizeof(Area);
}
inline Identity& identity_of(pinrail_registration_t* reg) { return *(reinterpret_cast<Identity*>(&area_of(reg)) - 1); }
inline const Identity& identity_of(const pinrail_registration_t* reg) {
  return identity_of(const_cast<pinrail_registration_t*>(reg));
}

struct LruPlaceOf {
  uint32_t& operator()(pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
  uint32_t operator()(const pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
};

using mpool::Limits;

struct Cache {
  explicit Cache(const Limits& wanted) : budget(wanted), limits_(wanted) {}
  const Limits& limits() const { return limits_; }

  Mutex mutex{LockRank::cache};
  Condition changed;  // a registration was closed, or a pending request ended
  mpool::Budget budget GUARDED_BY(mutex);
  LruList<LruPlaceOf> lru_list GUARDED_BY(mutex);
  uint64_t closing GUARDED_BY(mutex) = 0;  // claimed, and its deregister_mem has not returned

 private:
  const Limits limits_;
};

using Caches = mpool::Caches<Cache>;

}  // namespace pinrail::gpu_pool

#endif
