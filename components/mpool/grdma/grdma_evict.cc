// SPDX-License-Identifier: BSD-3-Clause
// Makes room: the idle registration of the cache whose turn it is is evicted. API context. Functions whose names end
// in _locked run under the cache lock; before the others the caller holds no lock, because they call the registrar. The
// calling thread may hold references.
#include "base/core/on_unwind.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// Evicts the next idle registration of the cache. False: none is idle.
bool Pool::evict_one(pinrail_thread_t* thread) {
  const Victim victim = cache_->claim_victim(this);
  if (victim.reg == nullptr) return false;
  OnUnwind unwound([&] { victim.owner->deregistrar_.dismiss_and_free(thread, victim.reg); });
  evict_from_device(thread, victim);
  unwound.disarm();
  victim.owner->deregistrar_.dismiss_and_free(thread, victim.reg);
  return true;
}

// Removes the victim from the index and deregisters it; the caller dismisses it.
void Pool::evict_from_device(pinrail_thread_t* thread, const Victim& victim) {
  victim.owner->remove_from_index(victim.reg);
  victim.owner->deregistrar_.deregister(thread, victim.reg, PINRAIL_REASON_EVICTED);
}

// NOT_FOUND: a find saw that it is dead and removed it, or an event did.
void Pool::remove_from_index(pinrail_registration_t* reg) { Status(rcache_.ops.remove(rcache_.module, reg)).ignore(); }

// Parameter empty_cache: everything idle goes.
void Pool::evict_all(pinrail_thread_t* thread) {
  while (evict_one(thread)) {
  }
}

// For pinrail_mpool_evict(). NOT_FOUND: nothing is idle.
Status Pool::evict(pinrail_thread_t* thread) {
  gc_.drain(thread, SIZE_MAX);
  return evict_one(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

// A ready registration, dead now and counted as being given back. NULL: none is ready.
pinrail_registration_t* Pool::take_victim_locked() {
  assert_cache_held();
  pinrail_registration_t* reg = eviction_list_.take_ready_locked();
  if (reg == nullptr) return nullptr;
  in_flight_.begin_eviction();
  return reg;
}

// Drains the pools of the cache that have something dead and that a call into this one may drain; if these are more
// than it can visit, the next call finds the others.
size_t Pool::drain_all(pinrail_thread_t* thread) {
  constexpr size_t kPools = 64;
  Pool* pools[kPools];
  const size_t count = cache_->visit_dead(thread, this, pools, kPools);
  size_t given_back = 0, i = 0;
  const auto leave_one = [&] { pools[i++]->in_flight_.end_visit(); };
  OnUnwind unwound([&] {
    while (i < count) leave_one();
  });
  while (i < count) {
    given_back += pools[i]->gc_.drain(thread, Gc::kSome);
    leave_one();
  }
  unwound.disarm();
  return given_back;
}

// For pinrail_mpool_progress(): drains all.
Status Pool::progress(pinrail_thread_t* thread) {
  gc_.drain(thread, SIZE_MAX);  // may take only what an earlier call left over
  gc_.drain(thread, SIZE_MAX);
  return gpu_ != nullptr ? gpu_->ranges()->progress(thread) : success();
}

}  // namespace pinrail::grdma
