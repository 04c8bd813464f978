// SPDX-License-Identifier: BSD-3-Clause
// grdma_eviction_list.h - which idle registration of one pool was used longest ago?
//
// Whether a registration is idle is not known, it has to be found out: some of the oldest are claimed and summed; those
// that are idle stay claimed and become ready, the claims on the others are revoked. A hit may break a claim at any
// time, and then the evictor finds it broken.
//
// Owns     places of registrations. Not the registrations.
// Threads  all functions under the cache lock (`mutex`). Never in a hook.
//
// grdma_eviction_list/L1  The LRU list holds only registrations that are counted per thread: pending, held or idle.
// grdma_eviction_list/L2  Those that were claimed and found idle are in ready_ instead, oldest first. A registration is
//     in one of the two at most.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_EVICTION_LIST_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_EVICTION_LIST_H

#include "base/lru/lru_list.h"
#include "base/registration/shortcut.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_area.h"

namespace pinrail::grdma {

struct LruPlaceOf {
  uint32_t& operator()(pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
  uint32_t operator()(const pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
};

class EvictionList {
 public:
  // The references are to the pool's, which sets rcache and start_table before the first registration.
  EvictionList(Mutex& cache_mutex, const pinrail_host_t* host, const pinrail_rcache_t& rcache,
               const pinrail_start_table_t* const& start_table)
      : mutex(cache_mutex), host_(host), rcache_(rcache), start_table_(start_table) {}

  // Memory for so many registrations, so that nothing else here allocates. May throw bad_alloc.
  void reserve_locked(size_t count) REQUIRES(mutex) { lru_list_.reserve(count); }
  void insert_locked(pinrail_registration_t* reg, uint64_t epoch) REQUIRES(mutex) { lru_list_.insert(reg, epoch); }
  // It may be listed or not.
  void remove_locked(pinrail_registration_t* reg) REQUIRES(mutex);

  // The last use of the registration that would be evicted first. False if none was used up to `now`.
  bool oldest_epoch_locked(uint64_t now, uint64_t* epoch_out) const REQUIRES(mutex);
  // Claims and sums the oldest registrations, and keeps the idle ones ready. False if none was used up to `now`.
  bool claim_oldest_locked(uint64_t now) REQUIRES(mutex);
  // The oldest ready one, now dead, claimed and off the list; it is still in the index. NULL if none is left.
  pinrail_registration_t* take_ready_locked() REQUIRES(mutex);

  // Calls is_enough(reg) for the ready ones until it returns true; whether it did.
  template <typename IsEnough>
  bool visit_ready_locked(IsEnough&& is_enough) const REQUIRES(mutex) {
    for (size_t i = ready_next_; i != ready_end_; ++i) {
      if (is_ready(ready_[i]) && is_enough(ready_[i])) return true;
    }
    return false;
  }
  // False for one that was ready and has been used since: the hit has broken the claim.
  static bool is_ready(const pinrail_registration_t* reg) {
    return area_of(reg).is_ready && (state::load(reg) & state::kEvictClaim) != 0;
  }

  // grdma_eviction_list/L1 and grdma_eviction_list/L2 of one registration, and the order of all. NULL: they hold.
  static const char* check_locked(const pinrail_registration_t* reg);
  bool in_order_locked() const REQUIRES(mutex) { return lru_list_.in_order(); }

  Mutex& mutex;

 private:
  static constexpr size_t kMostClaimed = 64;

  size_t claim_some_locked(uint64_t now, pinrail_registration_t** regs_out, size_t room) REQUIRES(mutex);
  void unhide_locked(pinrail_registration_t* reg, uint64_t epoch) REQUIRES(mutex);

  const pinrail_host_t* const host_;
  const pinrail_rcache_t& rcache_;
  const pinrail_start_table_t* const& start_table_;

  LruList<LruPlaceOf> lru_list_ GUARDED_BY(mutex);
  // [ready_next_, ready_end_) are claimed and were found idle, oldest first.
  pinrail_registration_t* ready_[kMostClaimed] GUARDED_BY(mutex) = {};
  size_t ready_next_ GUARDED_BY(mutex) = 0;
  size_t ready_end_ GUARDED_BY(mutex) = 0;
};

}  // namespace pinrail::grdma

#endif
