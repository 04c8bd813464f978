// SPDX-License-Identifier: BSD-3-Clause
// grdma_area.h - what a pool keeps of each registration beside it, and lists of registrations that are linked there.
//
// Owns     nothing. The library gives each registration its area, zeroed.
// Threads  each field names its lock.
// Hook     All functions.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_AREA_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_AREA_H

#include <pinrail/component_mpool.h>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::grdma {

class Pool;

struct Area {
  pinrail_registration_t* gc_next;   // while on the gc list or the displaced list; later the library's (settle_dead)
  pinrail_registration_t* previous;  // in one of the two lists of Registered; guarded by the cache lock
  pinrail_registration_t* next;
  Pool* owner;       // constant
  uint32_t passed;   // the epoch in which the evictor last passed it by (grdma_eviction_list/L3); cache lock
  uint8_t reason;    // pinrail_reason_t; relaxed atomic
  bool is_ready;     // it stands among the ready ones of EvictionList; guarded by the cache lock
  bool is_uncached;  // it is an UncachedArea, and linked; read only when it is deregistered
};

// Of a registration that is counted in its state word and may be held outside the index.
struct UncachedArea : Area {
  pinrail_registration_t* previous_uncached;  // guarded by the lock of Unindexed
  pinrail_registration_t* next_uncached;
};
static_assert(sizeof(UncachedArea) <= arena::area_bytes(PINRAIL_COUNTING_SHARED), "it fits");
static_assert(sizeof(Area) <= arena::area_bytes(PINRAIL_COUNTING_THREADS), "it fits");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }

inline UncachedArea& uncached_area_of(pinrail_registration_t* reg) {
  return *static_cast<UncachedArea*>(arena::area_of(reg));
}

// The caller changes both cache lines of the registration soon: their misses overlap.
inline void prefetch(const pinrail_registration_t* reg) {
  __builtin_prefetch(reg, 1);
  __builtin_prefetch(arena::area_of(reg), 1);
}

// One doubly linked list. A walk that gives the lock back between two batches keeps its place here, and unlink() moves
// the place on. The evictor's walk begins again behind the end, and what is linked comes to its end. All functions
// under the lock that guards the list.
struct List {
  enum Walk : uint8_t { counting, looking, evicting };
  pinrail_registration_t* first = nullptr;
  pinrail_registration_t* places[3] = {};  // by Walk
  size_t size = 0;

  void link(pinrail_registration_t* reg) {
    pinrail_registration_t*& hand = places[evicting];
    if (hand == nullptr) hand = first;
    pinrail_registration_t* before = nullptr;
    if (hand != nullptr) {
      Area& of_hand = area_of(hand);
      before = of_hand.previous;
      of_hand.previous = reg;
    }
    Area& area = area_of(reg);
    area.previous = before;
    area.next = hand;
    (before != nullptr ? area_of(before).next : first) = reg;
    ++size;
  }
  void unlink(pinrail_registration_t* reg) {
    const Area& area = area_of(reg);
    if (area.next != nullptr) area_of(area.next).previous = area.previous;
    (area.previous != nullptr ? area_of(area.previous).next : first) = area.next;
    for (pinrail_registration_t*& place : places) {
      if (place == reg) place = area.next;
    }
    --size;
  }
  // reg takes the place of another one. Walks that stand there go on behind it: for the evictor it is the last one.
  void replace(pinrail_registration_t* other, pinrail_registration_t* reg) {
    const Area& from = area_of(other);
    Area& to = area_of(reg);
    to.previous = from.previous;
    to.next = from.next;
    if (to.next != nullptr) area_of(to.next).previous = reg;
    (to.previous != nullptr ? area_of(to.previous).next : first) = reg;
    for (pinrail_registration_t*& place : places) {
      if (place == other) place = to.next;
    }
  }
  // The next registrations of the walk, at most so many; the walk goes on behind them.
  size_t next_batch(Walk walk, pinrail_registration_t** regs_out, size_t most) {
    pinrail_registration_t*& place = places[walk];
    size_t count = 0;
    for (; place != nullptr && count < most; place = area_of(place).next) regs_out[count++] = place;
    return count;
  }
};

}  // namespace pinrail::grdma

#endif
