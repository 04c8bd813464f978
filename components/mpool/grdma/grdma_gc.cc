// SPDX-License-Identifier: BSD-3-Clause
// Deferred deregistration, API context only: what events killed goes back to the device.
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Gives back what is on the gc list of this pool; returns how many.
size_t Pool::drain_own(pinrail_thread_t* thread) {
  // relaxed: only whether it is worth an exchange.
  if (gc_list_.load(std::memory_order_relaxed) == nullptr) return 0;
  // acquire: pairs with the release push in die_hook().
  pinrail_registration_t* reg = gc_list_.exchange(nullptr, std::memory_order_acquire);
  size_t given_back = 0;
  while (reg != nullptr) {
    pinrail_registration_t* next = area_of(reg).gc_next;
    // relaxed: the bound of the gc list need not be exact.
    gc_bytes_.fetch_sub(reg->length, std::memory_order_relaxed);
    give_back(thread, reg, PINRAIL_REASON_RELEASED);
    ++given_back;
    reg = next;
  }
  if (gc_bytes_.load(std::memory_order_relaxed) <= settings_.gc_limit) gc_due_.store(false, std::memory_order_relaxed);
  return given_back;
}

// The same for every pool of the cache that a call into this one may touch.
size_t Pool::drain_all(pinrail_thread_t* thread) {
  constexpr size_t kPools = 64;
  Pool* pools[kPools];
  const size_t count = cache_->reachable_pools(this, pools, kPools);
  size_t given_back = 0;
  for (size_t i = 0; i < count; ++i) {
    given_back += pools[i]->drain_own(thread);
    pools[i]->visitors_.fetch_sub(1, std::memory_order_release);  // pairs with the acquire load in destroy()
  }
  return given_back;
}

void Pool::drain_if_due(pinrail_thread_t* thread) {
  // relaxed: a hint; the list itself is taken with an acquire.
  if (gc_due_.load(std::memory_order_relaxed)) drain_own(thread);
}

Status Pool::progress(pinrail_thread_t* thread) {
  drain_own(thread);
  return success();
}

}  // namespace pinrail::grdma
