// SPDX-License-Identifier: BSD-3-Clause
// grdma_gc.h - deferred deregistration of one pool: what events and inserts killed goes back to the device once it is
// not held. It works on the gc list, on the displaced list and on limbo.
//
// Owns     what it has taken off a list, until it has given it back.
// Threads  all functions may run together, also on the gc thread. Never in a hook. The caller holds no lock, because
//          the registrar is called.
//
// grdma_gc/F1  in_flight counts a drain from before it takes anything off a list until it has given it back or put it
//     back, also if the thread is unwound inside the registrar.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_GC_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_GC_H

#include "components/mpool/grdma/grdma_deregistrar.h"
#include "components/mpool/grdma/grdma_gc_list.h"
#include "components/mpool/grdma/grdma_registered.h"

namespace pinrail::grdma {

class Gc {
 public:
  // What one call sums at most, with one barrier: an event may kill tens of thousands, and one call shall not wait for
  // all of them.
  static constexpr size_t kSome = 256;

  // The objects are the pool's, and have one cache lock.
  Gc(const pinrail_host_t* host, GcList* gc_list, Registered* registered, Unindexed* unindexed, InFlight* in_flight,
     Deregistrar* deregistrar)
      : host_(host),
        gc_list_(*gc_list),
        registered_(*registered),
        unindexed_(*unindexed),
        in_flight_(*in_flight),
        deregistrar_(*deregistrar) {}

  // Gives back what is dead and unreferenced. Sums at most so many of the gc list and of the displaced list. Returns
  // how many were given back.
  size_t drain(pinrail_thread_t* thread, size_t most);
  // At the beginning of a call: drains all if more than gc_limit bytes are dead.
  void drain_if_due(pinrail_thread_t* thread) {
    if (gc_list_.is_due()) drain(thread, SIZE_MAX);
  }
  void drain_if_many(pinrail_thread_t* thread);
  // The gc thread's. Joined before hooks come in.
  Status join_thread() { return gc_list_.join_thread(drain_entry, this); }

  // Hints: a drop or an event that needs the answer drains by itself, or wakes the gc thread.
  bool has_dead(const pinrail_thread_t* thread) const {
    return gc_list_.has_pushed() || unindexed_.has_displaced() || is_overdue(thread);
  }

 private:
  static constexpr size_t kBatch = Registered::kBatch;
  static constexpr size_t kMany = kBatch;  // a miss sums no fewer, if those can wait

  // What an earlier drain left over, or may have misjudged.
  bool is_overdue(const pinrail_thread_t* thread) const {
    return gc_list_.has_rest() || registered_.needs_recheck(thread);
  }
  static int drain_entry(void* gc, pinrail_thread_t* thread);
  void settle_due();
  void wake_for_limbo_locked() REQUIRES(registered_.mutex);
  size_t drain_gc_list(pinrail_thread_t* thread, size_t most);
  size_t sum_some(pinrail_thread_t* thread, pinrail_registration_t** chain, size_t most);
  size_t give_back_idle(pinrail_thread_t* thread, pinrail_registration_t** regs, const int64_t* references,
                        size_t count, uint64_t rollbacks);
  void give_back(pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count);
  bool put_in_limbo(pinrail_registration_t* reg, uint64_t rollbacks);
  size_t drain_displaced(pinrail_thread_t* thread, size_t most);
  size_t sum_displaced(const pinrail_thread_t* thread, size_t most, pinrail_registration_t** idle_out,
                       size_t* idle_count_out);
  size_t recheck_limbo(pinrail_thread_t* thread);

  const pinrail_host_t* const host_;
  GcList& gc_list_;
  Registered& registered_;
  Unindexed& unindexed_;
  InFlight& in_flight_;
  Deregistrar& deregistrar_;
};

}  // namespace pinrail::grdma

#endif
