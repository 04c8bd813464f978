// SPDX-License-Identifier: BSD-3-Clause
// API context. The caller holds no lock (R6). The calling thread may hold references of other registrations.
#include "components/mpool/grdma/grdma_deregistrar.h"

#include <algorithm>

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

// A few at a time give up their places in one hold of the cache lock. Only a few, because a thread may wait for the
// room while the device deregisters the others.
void Deregistrar::give_back(pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count,
                            pinrail_reason_t reason, size_t* given_back) {
  constexpr size_t kTogether = 8;
  while (count != 0) {
    const size_t together = std::min(kTogether, count);
    size_t at = 0;
    const auto finish = [&](size_t deregistered) {
      cache_.dismiss(pool_, regs, deregistered);
      for (size_t i = 0; i < deregistered; ++i) host_->registrations->free(host_, regs[i]);
      *given_back += deregistered;
      in_flight_.end_releases(thread, together);  // last: after it the pool may be destroyed
    };
    in_flight_.begin_releases(together);
    OnUnwind unwound([&] { finish(at + 1); });
    for (; at < together; ++at) deregister(thread, regs[at], reason);
    unwound.disarm();
    finish(together);
    regs += together;
    count -= together;
  }
}

void Deregistrar::dismiss_and_free(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  cache_.dismiss(pool_, reg);
  free_dismissed(thread, reg);
}

void Deregistrar::free_dismissed(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  host_->registrations->free(host_, reg);
  in_flight_.end_releases(thread, 1);  // last: after it the pool may be destroyed
}

}  // namespace pinrail::grdma
