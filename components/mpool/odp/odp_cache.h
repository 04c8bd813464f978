// SPDX-License-Identifier: BSD-3-Clause
// odp_cache.h - what the pools of one cache name have registered together, and which of it is evicted (R7, R8, R11).
//
// Owns     numbers, and the list of all registrations that the device knows or is about to know.
// Threads  all functions may run together. API context.
#ifndef PINRAIL_COMPONENTS_MPOOL_ODP_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_ODP_CACHE_H

#include "components/common/cache_list/cache_list.h"

namespace pinrail::odp {

using cache_list::area_of;

class Cache : public cache_list::CacheList {
 public:
  using CacheList::CacheList;

  static uint64_t pinned_bytes() { return 0; }  // the device faults pages in

  // Marks the least recently used idle registration dead, if what is idle makes enough room for so many bytes and one
  // registration, and takes it out of the list. NULL: there is none, or not enough. dismiss_victim() follows.
  pinrail_registration_t* take_victim(uint64_t bytes) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    if (!idle_make_room_locked(bytes)) return nullptr;
    for (;;) {
      pinrail_registration_t* const oldest = oldest_idle_locked();
      if (oldest == nullptr) return nullptr;
      const uint64_t word = state::load(oldest);
      if (!is_idle(word) || !claim(oldest, word)) continue;
      unlink_locked(oldest);
      ++victims_;
      return oldest;
    }
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
    unlink_locked(reg);
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

  pinrail_registration_t* oldest_idle_locked() const REQUIRES(mutex_) {
    pinrail_registration_t* oldest = nullptr;
    for_each_locked([&](pinrail_registration_t* reg) {
      if (is_idle(state::load(reg)) && (oldest == nullptr || last_use(reg) <= last_use(oldest))) oldest = reg;
    });
    return oldest;
  }

  // R7: a request that could not be met even if everything idle were evicted evicts nothing.
  bool idle_make_room_locked(uint64_t bytes) const REQUIRES(mutex_) {
    const uint64_t missing_bytes = budget_.missing_bytes(bytes), missing_count = budget_.missing_count();
    uint64_t idle_bytes = 0, idle_count = 0;
    for_each_locked([&](pinrail_registration_t* reg) {
      if (!is_idle(state::load(reg))) return;
      idle_bytes += area_of(reg).charge;
      ++idle_count;
    });
    return idle_count != 0 && idle_bytes >= missing_bytes && idle_count >= missing_count;
  }

  Condition no_victims_;
  size_t victims_ GUARDED_BY(mutex_) = 0;
};

}  // namespace pinrail::odp

#endif
