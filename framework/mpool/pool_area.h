// SPDX-License-Identifier: BSD-3-Clause
// pool_area.h - what pools keep beside each registration. A pool that keeps more has this at its beginning.
//
// Owns     nothing. The library gives each registration its area, zeroed.
// Threads  each field names its lock.
// Hook     All functions.
#ifndef PINRAIL_FRAMEWORK_MPOOL_POOL_AREA_H
#define PINRAIL_FRAMEWORK_MPOOL_POOL_AREA_H

#include <pinrail/component_mpool.h>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::mpool {

struct Children {
  uint32_t left, right;
};

struct Area {
  // A registration is on the gc list, or among those outside of the index, or in neither.
  union {
    pinrail_registration_t* gc_next;  // gc_list.h
    Children outside;                 // grdma_outside.h; with pinrail_registration_t::link
  };
  uint32_t place;   // in Registrations; cache lock
  uint16_t owner;   // number of its pool in the cache; constant
  uint8_t reason;   // pinrail_reason_t; relaxed atomic
  bool is_outside;  // it is linked in Outside; lock of Outside
};
static_assert(sizeof(Area) <= PINRAIL_AREA_SMALL, "it is full: one field more takes the large area");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }
inline pinrail_handle_t handle_of(pinrail_registration_t* reg) { return {reg, generation_of(reg)}; }

// Bytes that it takes of the budget: none if it is of all memory.
constexpr uint64_t charge_of(uint64_t length) { return length > SIZE_MAX / 2 ? 0 : length; }
inline uint64_t charge_of(const pinrail_registration_t* reg) { return charge_of(reg->length); }

// The memory of a dead registration goes away, too. Written before the state word changes, or under a lock that the
// owner takes before it reads it. relaxed: ordered by these.
inline void mark_invalidated_hook(pinrail_registration_t* reg) {
  __atomic_store_n(&area_of(reg).reason, uint8_t{PINRAIL_REASON_INVALIDATED}, __ATOMIC_RELAXED);
}
inline bool is_invalidated(const pinrail_registration_t* reg) {
  return __atomic_load_n(&area_of(reg).reason, __ATOMIC_RELAXED) == PINRAIL_REASON_INVALIDATED;
}

// The caller changes both cache lines of the registration soon: their misses overlap.
inline void prefetch(const pinrail_registration_t* reg) {
  __builtin_prefetch(reg, 1);
  __builtin_prefetch(arena::area_of(reg), 1);
}

}  // namespace pinrail::mpool

#endif
