// SPDX-License-Identifier: BSD-3-Clause
// Makes room: the least recently used idle registration of the cache is evicted. API context. Functions whose names end
// in _locked run under the cache lock; before the others the caller holds no lock, because they call the registrar. The
// calling thread may hold references.
#include "base/core/on_unwind.h"
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Evicts the least recently used idle registration of the cache. False: none is idle.
bool Pool::evict_one(pinrail_thread_t* thread) {
  const Victim victim = cache_->claim_victim(this);
  if (victim.reg == nullptr) return false;
  OnUnwind unwound([&] { dismiss_and_free(victim.reg, victim.owner); });
  evict_from_device(thread, victim);
  unwound.disarm();
  dismiss_and_free(victim.reg, victim.owner);
  return true;
}

// Removes the victim from the index and deregisters it; the caller dismisses it.
void Pool::evict_from_device(pinrail_thread_t* thread, const Victim& victim) {
  Pool* owner = victim.owner;
  // NOT_FOUND: a find saw that it is dead and removed it, or an event did.
  Status(owner->rcache_.ops.remove(owner->rcache_.module, victim.reg)).ignore();
  owner->deregister_from_device(thread, victim.reg, PINRAIL_REASON_EVICTED);
}

// Parameter empty_cache: everything idle goes.
void Pool::evict_all(pinrail_thread_t* thread) {
  while (evict_one(thread)) {
  }
}

// For pinrail_mpool_evict(). NOT_FOUND: nothing is idle.
Status Pool::evict(pinrail_thread_t* thread) {
  drain_own(thread, SIZE_MAX);
  return evict_one(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

// May throw bad_alloc; list_locked() of one registration does not afterwards.
void Pool::reserve_locked() {
  assert_cache_held();
  eviction_list_.reserve_locked(registered_.count_locked() + 1);
}

// Links a pending registration into the pool's lists.
void Pool::list_locked(pinrail_registration_t* reg) {
  assert_cache_held();
  registered_.add_locked(reg);
  if ((state::load(reg) & state::kPerThread) != 0) eviction_list_.insert_locked(reg, cache_->epoch());
}

// Takes it off the pool's lists: the device does not know it any more, or will not soon.
void Pool::unlist_locked(pinrail_registration_t* reg) {
  assert_cache_held();
  eviction_list_.remove_locked(reg);
  registered_.remove_locked(reg);
}

// A ready registration, dead now and counted as being given back. NULL: none is ready.
pinrail_registration_t* Pool::take_victim_locked() {
  assert_cache_held();
  pinrail_registration_t* reg = eviction_list_.take_ready_locked();
  if (reg == nullptr) return nullptr;
  in_flight_.begin_release();
  count_locked(&evictions_);
  return reg;
}

}  // namespace pinrail::grdma
