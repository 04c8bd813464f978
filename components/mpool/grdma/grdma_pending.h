// SPDX-License-Identifier: BSD-3-Clause
// grdma_pending.h - the misses of one pool that the index has announced: equal ones wait for each other (R5).
//
// Owns     nothing but the waiting. The index has the announcements; each is a local variable of its register call.
// Threads  all functions may run together. Never in a hook.
//
// grdma_pending/W1  A call that waits is counted before it asks the index for the last time, and a call under way wakes
//     after it has left the index's announcements. Both take the lock of the index in between, so no wakeup is lost.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_PENDING_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_PENDING_H

#include <atomic>

#include "base/core/status.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_cache.h"
#include "components/mpool/grdma/grdma_request.h"

namespace pinrail::grdma {

struct Pending {
  pinrail_announcement_t announcement;
  uint32_t rights;            // to be registered: those of the request, and those that R4 adds
  bool is_announced = false;  // the announcement lasts
  bool is_uncached = false;   // its registration will not be in the index
  Admission admission;        // of the registration that is made
  // A victim whose place in the budget the call has taken: deregistered, and still in the index until publish(). NULL:
  // there is none.
  pinrail_registration_t* leaving = nullptr;
};

class PendingCalls {
 public:
  // rcache is the pool's, set before the first call.
  explicit PendingCalls(const pinrail_rcache_t& rcache) : rcache_(rcache) {}

  // Announces the call, unless the index answers by now. Waits at most once for a call under way that will answer this
  // one. SUCCESS: found, and the caller holds it. NOT_FOUND: announced, as TEMP_OUT_OF_RESOURCE, where the index must
  // be prepared. Others: errors.
  pinrail_status_t announce(pinrail_thread_t* thread, const Request& request, Pending* own,
                            pinrail_registration_t** reg_out) EXCLUDES(mutex_);
  // Ends the announcement, if it lasts. Returns whether an event has overtaken it.
  bool withdraw(Pending* own) EXCLUDES(mutex_);
  // The index has published the registration, and ended the announcement.
  void end(Pending* own) EXCLUDES(mutex_) {
    own->is_announced = false;
    wake_waiters();
  }

 private:
  pinrail_status_t wait(pinrail_thread_t* thread, Pending* own, pinrail_registration_t** reg_out) EXCLUDES(mutex_);
  void wake_waiters() EXCLUDES(mutex_) {
    // relaxed: grdma_pending/W1
    if (waiters_.load(std::memory_order_relaxed) != 0) wake();
  }
  void wake() EXCLUDES(mutex_);

  const pinrail_rcache_t& rcache_;
  Mutex mutex_{LockRank::pending};
  Condition ended_;                   // an announcement has ended
  std::atomic<uint32_t> waiters_{0};  // changes under mutex_
};

}  // namespace pinrail::grdma

#endif
