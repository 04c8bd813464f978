// SPDX-License-Identifier: BSD-3-Clause
// grdma_pending.h - the register calls of one pool that are under way: equal ones wait for each other (R5), and events
// that overtake them are noticed (R13).
//
// Owns     the list. Each Pending is a local variable of its register call.
// Threads  all functions may run together.
// Hook     what ends in _hook, alone.
//
// grdma_pending/W1  A call is listed from before it looks into the index for the last time until what it registered is
//     in the index, or until it failed.
// grdma_pending/W2  The head changes under the lock, except that a call that finds the list empty enters without it. So
//     a hook that finds the list empty without the lock comes before the next call looks at the mapping and the index,
//     or after the insert of the last one.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_PENDING_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_PENDING_H

#include <atomic>

#include "base/core/span.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_request.h"

namespace pinrail::grdma {

struct Pending {
  pinrail_announcement_t announcement;  // in the index; set by enter()
  Span span;
  uint32_t rights = 0;
  uint32_t traits = 0;
  uint64_t ticket = 0;       // 0: no other call waits for it
  bool raced = false;        // an event has overtaken it
  bool is_counted = false;   // as a miss
  bool is_uncached = false;  // its registration will not be in the index
  Pending* next = nullptr;
};

// What a miss found in the index when it looked for the last time.
enum class Entered : uint8_t {
  found,         // a registration that answers; the caller holds it
  ready,         // none: the call is listed, and the index has memory for the insert
  needs_memory,  // none: the call is listed, and the index must get memory first
};

class PendingCalls {
 public:
  // is_exact: only calls for the same range and the same rights wait for each other. rcache is the pool's, set before
  // the first call.
  PendingCalls(HookLocks locks, const pinrail_rcache_t& rcache, bool is_exact)
      : mutex(LockRank::pending, locks), rcache_(rcache), is_exact_(is_exact) {}

  // Lists the call and announces an insert to the index, unless the index answers by now. Waits at most once for a call
  // under way that will cover this one. Each call that was listed leaves.
  Entered enter(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out)
      EXCLUDES(mutex);
  void leave(Pending* own) EXCLUDES(mutex);
  void leave_locked(Pending* own) REQUIRES(mutex);

  // Marks the calls under way whose range overlaps. Either it or the call's insert comes first, see grdma_pending/W2.
  void mark_raced_hook(const Span& span) EXCLUDES(mutex);
  // A full barrier for an event that was only written down so far.
  void barrier_hook();

  // "pending" in lock_rank.h. Public: it guards what is held outside the index, too (grdma_unindexed.h).
  HookMutex mutex;

 private:
  Entered enter_locked(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out)
      REQUIRES(mutex);
  pinrail_status_t look_again(pinrail_thread_t* thread, const Request& request, Pending* own,
                              pinrail_registration_t** reg_out);
  void wait_for_locked(Pending* other) REQUIRES(mutex);
  Pending* find_covering_locked(const Pending& own) const REQUIRES(mutex);
  bool is_listed_locked(uint64_t ticket) const REQUIRES(mutex);
  void unlink_locked(Pending* own) REQUIRES(mutex);

  const pinrail_rcache_t& rcache_;
  const bool is_exact_;
  Condition done_;                        // a call has left
  std::atomic<Pending*> first_{nullptr};  // grdma_pending/W2; seq_cst where no other order is named
  std::atomic<uint32_t> barriers_{0};     // never read
  uint64_t last_ticket_ GUARDED_BY(mutex) = 0;
  size_t waiters_ GUARDED_BY(mutex) = 0;
};

}  // namespace pinrail::grdma

#endif
