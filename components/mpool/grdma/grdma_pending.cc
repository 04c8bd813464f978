// SPDX-License-Identifier: BSD-3-Clause
// API context. The caller holds no lock. No registrar is called. The calling thread may hold references.
#include "components/mpool/grdma/grdma_pending.h"

namespace pinrail::grdma {

pinrail_status_t PendingCalls::announce(pinrail_thread_t* thread, const Request& request, Pending* own,
                                        pinrail_registration_t** reg_out) {
  pinrail_announcement_t& announcement = own->announcement;
  announcement.base = request.span.base;
  announcement.length = request.span.length();
  announcement.access = request.access();
  announcement.waits_for = 0;
  announcement.flags = request.flags() & PINRAIL_FLAG_PERSISTENT;
  pinrail_status_t status = rcache_.ops.find_or_announce(rcache_.module, thread, &announcement, reg_out);
  if (status == PINRAIL_ERR_WOULD_BLOCK) status = wait(thread, own, reg_out);
  own->is_announced = status == PINRAIL_ERR_NOT_FOUND || status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  own->rights = request.rights() | announcement.more_rights;  // R4
  // The index may have announced it for a moment before it found a registration: others may wait for it since.
  if (!own->is_announced) wake_waiters();
  return status;
}

// If the call that it waits for fails, this one goes on by itself. That call may be about to end: looks some more times
// before it sleeps, for about as long as falling asleep and waking take.
pinrail_status_t PendingCalls::wait(pinrail_thread_t* thread, Pending* own, pinrail_registration_t** reg_out) {
  constexpr int kLooks = 8, kPausesPerLook = 8;
  for (int looks = 0; looks < kLooks; ++looks) {
    for (int i = 0; i < kPausesPerLook; ++i) FutexLock::pause();
    const pinrail_status_t status = rcache_.ops.find_or_announce(rcache_.module, thread, &own->announcement, reg_out);
    if (status != PINRAIL_ERR_WOULD_BLOCK) return status;
  }
  Guard guard(mutex_);
  waiters_.fetch_add(1, std::memory_order_relaxed);  // relaxed: grdma_pending/W1
  pinrail_status_t status;
  for (;;) {
    status = rcache_.ops.find_or_announce(rcache_.module, thread, &own->announcement, reg_out);
    if (status != PINRAIL_ERR_WOULD_BLOCK) break;
    ended_.wait(mutex_);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return status;
}

bool PendingCalls::withdraw(Pending* own) {
  if (!own->is_announced) return false;
  const bool is_overtaken =
      rcache_.ops.withdraw(rcache_.module, &own->announcement) == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  end(own);
  return is_overtaken;
}

void PendingCalls::wake() {
  Guard guard(mutex_);
  ended_.notify_all();
}

}  // namespace pinrail::grdma
