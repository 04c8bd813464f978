// SPDX-License-Identifier: BSD-3-Clause
// grdma_eviction_list.h - which idle registration of one pool is evicted next?
//
// A hand goes round all registrations of the pool, and what was used since it last passed is passed by once more: a
// second chance (R7). So nothing is moved when something is used. New ones come to the end of the array.
//
// Whether a registration is idle is not known, it has to be found out: the next few that were not used are claimed and
// summed; those that are idle stay claimed and become ready, the claims on the others are revoked. A hit may break a
// claim at any time, and then the evictor finds it broken.
//
// Owns     the hand, and which ones are ready. Not the registrations.
// Threads  all functions under the cache lock (`mutex`). Never in a hook.
//
// grdma_eviction_list/L1  Only registrations that are indexed and counted per thread are claimed.
// grdma_eviction_list/L2  Those that were claimed and found idle are in ready_, oldest first, until they are taken or
//     their claims are found broken. They keep their places in the round.
// grdma_eviction_list/L3  Area::seen has the low bits of the epoch of the last use when the hand last passed, or of the
//     epoch in which the registration was made. Where they differ from the last use's, it was used since then. One that
//     a search finds held counts as used after that search began.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_EVICTION_LIST_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_EVICTION_LIST_H

#include "base/registration/shortcut.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_area.h"

namespace pinrail::grdma {

class EvictionList {
 public:
  // The references are to the pool's, which sets rcache and start_table before the first registration. registered: its
  // registrations.
  EvictionList(Mutex& cache_mutex, const pinrail_host_t* host, Round* registered, const pinrail_rcache_t& rcache,
               const pinrail_start_table_t* const& start_table)
      : mutex(cache_mutex), host_(host), registered_(*registered), rcache_(rcache), start_table_(start_table) {}

  // The epoch of the last use of the registration that would be claimed first; uses up to `now` count. False if none is
  // to be claimed.
  bool next_epoch_locked(uint64_t now, uint64_t* epoch_out) REQUIRES(mutex);
  // Claims and sums the next registrations, and keeps the idle ones ready. False if none is to be claimed that was not
  // used after `now`.
  bool claim_next_locked(uint64_t now) REQUIRES(mutex);
  // The oldest ready one, now dead and claimed; it is still in the index. NULL if none is left.
  pinrail_registration_t* take_ready_locked() REQUIRES(mutex);

  // Calls is_enough(reg) for the ready ones until it returns true; whether it did.
  template <typename IsEnough>
  bool visit_ready_locked(IsEnough&& is_enough) const REQUIRES(mutex) {
    for (size_t i = ready_next_; i != ready_end_; ++i) {
      if (ready_[i].is_claimed() && is_enough(ready_[i].reg)) return true;
    }
    return false;
  }

  // grdma_eviction_list/L1 and grdma_eviction_list/L2. NULL: they hold.
  const char* check_locked() const REQUIRES(mutex);

  alignas(64) Mutex& mutex;

 private:
  static constexpr size_t kMostClaimed = 128;

  // What was claimed. Its memory may be another registration's by now.
  struct Ready {
    pinrail_registration_t* reg;
    uint64_t generation;
    // False for one that was used or killed since: that has broken the claim. False also for one that was taken: one
    // whose first claim a hit broke at once may be ready twice.
    bool is_claimed_in(uint64_t word) const {
      constexpr uint64_t kClaimed = state::kIndexed | state::kEvictClaim;
      return (word & kClaimed) == kClaimed && state::generation(word) == generation;
    }
    bool is_claimed() const { return is_claimed_in(state::load(reg)); }
  };

  bool is_to_be_claimed_locked(pinrail_registration_t* reg, uint64_t now, uint64_t* used_out) const REQUIRES(mutex);
  pinrail_registration_t* turn_hand_locked(uint64_t now, uint64_t* used_out) REQUIRES(mutex);
  size_t claim_some_locked(uint64_t now, pinrail_registration_t** regs_out, size_t room) REQUIRES(mutex);

  const pinrail_host_t* const host_;
  Round& registered_ GUARDED_BY(mutex);
  const pinrail_rcache_t& rcache_;
  const pinrail_start_table_t* const& start_table_;

  // Of ready_, [ready_next_, ready_end_) are claimed and were found idle, oldest first.
  size_t ready_next_ GUARDED_BY(mutex) = 0;
  size_t ready_end_ GUARDED_BY(mutex) = 0;
  Ready ready_[kMostClaimed] GUARDED_BY(mutex) = {};
};

}  // namespace pinrail::grdma

#endif
