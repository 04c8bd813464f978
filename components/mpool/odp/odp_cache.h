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

  // Makes the oldest idle registration that was not hit lately dead, if what is idle makes enough room for so many
  // bytes and one registration, and takes it out of the list: the caller owns it. NULL: there is none, or not enough.
  // dismiss_victim() follows.
  pinrail_registration_t* take_victim(uint64_t bytes) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    // Of tiles of one size any one suffices; then an eviction is not preceded by a look at all.
    if (!budget_.any_one_suffices(bytes) && !idle_make_room_locked(bytes)) return nullptr;
    pinrail_registration_t* victim = retire_oldest_locked();
    if (victim == nullptr) victim = retire_oldest_locked();  // all had a second chance
    if (victim == nullptr) return nullptr;
    unlink_locked(victim);
    ++victims_;
    return victim;
  }
  // Takes a registration of the pool, whose destruction has begun, out of the list; then no evictor finds it. NULL: the
  // pool has none. repay() follows.
  pinrail_registration_t* take_any_of(const void* owner) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    pinrail_registration_t* const reg = first_of_locked(owner);
    if (reg != nullptr) unlink_locked(reg);
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

  // Retires the oldest idle registration that was not hit since the evictor last passed it. What was hit, or is used,
  // becomes the newest.
  pinrail_registration_t* retire_oldest_locked() REQUIRES(mutex_) {
    const pinrail_registration_t* const end = first_;
    for (pinrail_registration_t *at = last_, *newer; at != nullptr; at = newer) {
      newer = at == end ? nullptr : area_of(at).previous;
      if (!take_second_chance(at) && retire(at, state::load(at))) return at;
      unlink_locked(at);
      link_locked(at);
    }
    return nullptr;
  }

  // R7: nothing is evicted for a request for which evicting all that is idle would not make room enough.
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
