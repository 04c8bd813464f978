// SPDX-License-Identifier: BSD-3-Clause
// API context. The caller holds no lock (R6). The calling thread may hold references of other registrations.
#include "components/mpool/grdma/grdma_deregistrar.h"

#include "base/core/on_unwind.h"

namespace pinrail::grdma {

void Deregistrar::deregister(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                             Device device) {
  unindexed_.unlink_uncached(reg);
  // An event that has come since overrides: the memory may be another's by now (R12). relaxed: ordered by the state
  // word.
  const auto event = static_cast<pinrail_reason_t>(__atomic_load_n(&area_of(reg).reason, __ATOMIC_RELAXED));
  if (event == PINRAIL_REASON_INVALIDATED) reason = event;
  if (device == Device::restarted) {
    host_->pools->registrar_abandon(registrar_, thread, reg, reason);
    return;
  }
  const Status status = host_->pools->registrar_deregister(registrar_, thread, reg, reason);
  status.ignore();  // the framework has reported it; the registration is lost to us either way
}

void Deregistrar::give_back(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
  OnUnwind unwound([&] { dismiss_and_free(thread, reg); });
  deregister(thread, reg, reason);
  unwound.disarm();
  dismiss_and_free(thread, reg);
}

void Deregistrar::give_back_dropped(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  in_flight_.begin_release();
  give_back(thread, reg, PINRAIL_REASON_RELEASED);
}

void Deregistrar::dismiss_and_free(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  cache_.dismiss(pool_, reg);
  free_dismissed(thread, reg);
}

void Deregistrar::free_dismissed(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  host_->registrations->free(host_, reg);
  in_flight_.end_release(thread);  // last: after it the pool may be destroyed
}

}  // namespace pinrail::grdma
