// SPDX-License-Identifier: BSD-3-Clause
// odp_cache.h - what the pools of one cache name have registered together, and which of it is evicted (R7, R8, R11).
//
// Owns     numbers, and the list of all registrations that the device knows or is about to know.
// Threads  all functions may run together. API context.
//
// odp_cache/L1  The LRU list has what the list of registrations has. A registration that the evictor finds referenced,
//     or not yet in the index, counts as used then.
#ifndef PINRAIL_COMPONENTS_MPOOL_ODP_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_ODP_CACHE_H

#include "base/lru/lru_list.h"
#include "components/common/cache_list/cache_list.h"

namespace pinrail::odp {

using cache_list::area_of;

struct LruPlaceOf {
  uint32_t& operator()(const pinrail_registration_t* reg) const {
    return area_of(const_cast<pinrail_registration_t*>(reg)).lru_place;
  }
};

class Cache : public cache_list::CacheList {
 public:
  using CacheList::CacheList;

  static uint64_t pinned_bytes() { return 0; }  // the device faults pages in

  // As CacheList's. Its date of use is set. May throw bad_alloc.
  Status admit(pinrail_registration_t* reg) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    lru_list_.reserve(lru_list_.size() + 1);
    const Status status = admit_locked(reg);
    if (status.ok()) lru_list_.insert(reg, last_use(reg));
    return status;
  }
  void dismiss(pinrail_registration_t* reg) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    take_out_locked(reg);
    budget_.remove(area_of(reg).charge);
  }

  // Marks the least recently used idle registration dead, if what is idle makes enough room for so many bytes and one
  // registration, and takes it out of the list. NULL: there is none, or not enough. dismiss_victim() follows. now: the
  // epoch, not before any use that is dated.
  pinrail_registration_t* take_victim(uint64_t bytes, uint64_t now) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    if (!budget_.any_one_suffices(bytes) && !idle_make_room_locked(bytes)) return nullptr;
    for (size_t held = 0; held < lru_list_.size();) {
      pinrail_registration_t* const oldest = lru_list_.top().reg;
      const uint64_t used = last_use(oldest), word = state::load(oldest);
      if (used > lru_list_.top().epoch) {
        lru_list_.catch_up(used);
      } else if (is_idle(word) && claim(oldest, word)) {
        take_out_locked(oldest);
        ++victims_;
        return oldest;
      } else {
        lru_list_.catch_up(now);
        ++held;
      }
    }
    return nullptr;
  }
  // Marks a registration of the pool dead, whose destruction has begun, and takes it out of the list. NULL: the pool
  // has none. In one step with the search: what is only found may be evicted, freed and another pool's before it is
  // marked. repay() follows.
  pinrail_registration_t* take_any_of(const void* owner) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    pinrail_registration_t* const reg = first_of_locked(owner);
    if (reg == nullptr) return nullptr;
    uint64_t before;
    kill(reg, &before);  // false: it was dead, and is referenced
    take_out_locked(reg);
    return reg;
  }
  void repay(uint64_t charge) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    budget_.remove(charge);
  }

  void dismiss_victim(uint64_t charge) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    budget_.remove(charge);
    --victims_;
    if (victims_ == 0) no_victims_.notify_all();
  }
  // Returns when no thread gives a victim back.
  void wait_for_evictors() EXCLUDES(mutex_) {
    Guard guard(mutex_);
    while (victims_ != 0) no_victims_.wait(mutex_);
  }

 private:
  static bool is_idle(uint64_t word) { return (word & state::kIndexed) != 0 && state::references(word) == 0; }

  void take_out_locked(pinrail_registration_t* reg) REQUIRES(mutex_) {
    unlink_locked(reg);
    lru_list_.remove(reg);
  }

  // R7: a request that could not be met even if everything idle were evicted evicts nothing.
  bool idle_make_room_locked(uint64_t bytes) const REQUIRES(mutex_) {
    const uint64_t missing_bytes = budget_.missing_bytes(bytes), missing_count = budget_.missing_count();
    uint64_t idle_bytes = 0, idle_count = 0;
    return lru_list_.visit_until([&](pinrail_registration_t* reg) {
      if (!is_idle(state::load(reg))) return false;
      idle_bytes += area_of(reg).charge;
      ++idle_count;
      return idle_bytes >= missing_bytes && idle_count >= missing_count;
    });
  }

  LruList<LruPlaceOf> lru_list_ GUARDED_BY(mutex_);
  Condition no_victims_;
  size_t victims_ GUARDED_BY(mutex_) = 0;
};

}  // namespace pinrail::odp

#endif
