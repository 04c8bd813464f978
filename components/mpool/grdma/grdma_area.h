// SPDX-License-Identifier: BSD-3-Clause
// grdma_area.h - what a pool keeps of each registration beside it, and the array of all registrations.
//
// Owns     nothing. The library gives each registration its area, zeroed.
// Threads  each field names its lock.
// Hook     All functions.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_AREA_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_AREA_H

#include <pinrail/component_mpool.h>

#include <memory>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::grdma {

// What a pool registers, and what its registrations are of.
enum class Memory : uint8_t { host, gpu };

struct Area {
  pinrail_registration_t* gc_next;  // while on the gc list or the displaced list; later the library's (settle_dead)
  uint32_t place;                   // in Round; guarded by the cache lock
  uint16_t seen;                    // the last use that the evictor knows (grdma_eviction_list/L3); the same
  uint8_t reason;                   // pinrail_reason_t; relaxed atomic
  Memory memory;                    // its pool's; constant
};

// Of a registration that is counted in its state word and may be held outside the index.
struct UncachedArea : Area {
  pinrail_registration_t* previous_uncached;  // guarded by the lock of Unindexed
  pinrail_registration_t* next_uncached;
  bool is_uncached;  // it is linked; read only when it is deregistered
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

// All registrations of one pool that the device knows, by number (registration_arena.h), in one array: from its front
// those that the evictor's hand goes round, from its back those in limbo. A removal moves others to lower places only,
// and none from before the hand to behind it. So a walk downwards passes by none, and the hand by none in a round.
// Under the lock that guards the registrations; the back and the array itself change under that of Unindexed besides.
struct Round {
  char* const* chunks;  // of numbers
  std::unique_ptr<uint32_t[]> numbers;
  uint32_t capacity = 0, size = 0, in_limbo = 0;
  uint32_t hand = 0;  // where the evictor goes on

  pinrail_registration_t* at(size_t place) const { return arena::numbered(chunks, numbers[place]); }
  pinrail_registration_t* limbo_at(size_t place) const { return at(capacity - 1 - place); }
  bool is_full() const { return size + in_limbo == capacity; }

  // There must be room.
  void add(pinrail_registration_t* reg, uint64_t epoch) { put_new(reg, size++, epoch); }
  // reg takes the place of another one.
  void replace(const pinrail_registration_t* other, pinrail_registration_t* reg, uint64_t epoch) {
    put_new(reg, area_of(other).place, epoch);
  }
  void remove(const pinrail_registration_t* reg) {
    uint32_t hole = area_of(reg).place;
    if (hole < hand) {
      if (hole != --hand) put(at(hand), hole);
      hole = hand;
    }
    if (hole != --size) put(at(size), hole);
  }
  void add_to_limbo(pinrail_registration_t* reg) { put_in_limbo(reg, in_limbo++); }
  void remove_from_limbo(const pinrail_registration_t* reg) {
    const uint32_t hole = area_of(reg).place;
    if (hole != --in_limbo) put_in_limbo(limbo_at(in_limbo), hole);
  }

 private:
  void put_new(pinrail_registration_t* reg, uint32_t place, uint64_t epoch) {
    numbers[place] = static_cast<uint32_t>(arena::number_of(reg));
    Area& area = area_of(reg);
    area.place = place;
    area.seen = static_cast<uint16_t>(epoch);
  }
  void put(pinrail_registration_t* reg, uint32_t place) {
    numbers[place] = static_cast<uint32_t>(arena::number_of(reg));
    area_of(reg).place = place;
  }
  void put_in_limbo(pinrail_registration_t* reg, uint32_t place) {
    put(reg, capacity - 1 - place);
    area_of(reg).place = place;
  }
};

}  // namespace pinrail::grdma

#endif
