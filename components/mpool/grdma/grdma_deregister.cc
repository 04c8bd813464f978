// SPDX-License-Identifier: BSD-3-Clause
// The way out: drops the reference; what is dead, or not kept, goes back to the device with the last one. API context.
// The caller holds no lock, because the registrar may be called. The calling thread may hold more references than the
// one that it drops.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// The C face has checked that the handle is of this incarnation of its registration.
inline Status Pool::deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
  if ((state::load(handle.reg) & state::kSummed) != 0) return drop_summed(thread, handle);
  if (!references::drop_dated(thread, handle.reg, cache_->epoch_word)) return drop_elsewhere(thread, handle);
  const uint64_t after = state::load(handle.reg);
  if ((after & state::kDead) != 0) finish_dead(thread, handle, after);
  return success();
}

// The pool of GPU memory, or this one.
Pool* Pool::owner_of(const pinrail_registration_t* reg) {
  return gpu_ != nullptr && area_of(reg).memory == Memory::gpu ? gpu_->ranges() : this;
}

// The registration may have been freed since, so its pool is not known.
void Pool::dropped_dead(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after) {
  finish_dead(thread, handle, after);
  if (gpu_ != nullptr) gpu_->ranges()->gc_.drain(thread, Gc::kSome);
}

// It may have been the last reference. If the registration was summed as held, that sum may not have seen the drop, so
// the library settles it; if it was not summed yet, the next drain sees the drop.
void Pool::finish_dead(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after) {
  if (state::generation(after) != handle.generation) return;
  if (host_->registrations->settle_dead(host_, handle, PINRAIL_DEAD_DROPPED) == 1) {
    owner_of(handle.reg)->deregistrar_.give_back_one(thread, handle.reg, PINRAIL_REASON_RELEASED);
  }
  gc_.drain(thread, Gc::kSome);
}

// The registration is dead and was summed: the library counts its drops one by one.
Status Pool::drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle) {
  const int dropped = host_->registrations->settle_dead(host_, handle, PINRAIL_DEAD_DROP);
  if (dropped == 1) deregistrar_.give_back_one(thread, handle.reg, PINRAIL_REASON_RELEASED);
  return dropped < 0 ? PINRAIL_ERR_BAD_PARAM : PINRAIL_SUCCESS;
}

// The calling thread has no count of it: another thread took it, or it is counted in the state word, or the handle was
// dropped before.
Status Pool::drop_elsewhere(pinrail_thread_t* thread, pinrail_handle_t handle) {
  const uint64_t word = state::load(handle.reg);
  if (state::generation(word) != handle.generation) return PINRAIL_ERR_BAD_PARAM;
  if ((word & state::kPerThread) == 0) return drop_in_word(thread, handle);
  const bool is_plausible = references::has_count(thread, handle.reg) || seems_held(handle.reg);
  if (!is_plausible && !confirm_held(handle.reg, handle.generation)) return PINRAIL_ERR_BAD_PARAM;
  const uint64_t after = references::drop_counted(thread, handle.reg);
  if ((after & state::kDead) != 0) finish_dead(thread, handle, after);
  return success();
}

// Drops one reference. BAD_PARAM: the handle was dropped before.
pinrail_status_t Pool::deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle) {
  return guarded([&] { return static_cast<Pool*>(pool)->owner_of(handle.reg)->deregister(thread, handle); });
}

// It is counted in the state word: the last drop gives it back if it is dead or not kept.
Status Pool::drop_in_word(pinrail_thread_t* thread, pinrail_handle_t handle) {
  uint64_t word;
  const Drop dropped = drop_shared(handle, &word);
  if (dropped == Drop::stale) return PINRAIL_ERR_BAD_PARAM;
  if (dropped == Drop::done) return success();
  if ((word & state::kIndexed) != 0) {
    // A find may have taken a new reference since, or an event may have killed it: then that gives it back.
    if (!claim(handle.reg, word)) return success();
    Status(rcache_.ops.remove(rcache_.module, handle.reg))
        .ignore();  // NOT_FOUND: a find saw that it is dead and removed it
  }
  deregistrar_.give_back_one(thread, handle.reg, PINRAIL_REASON_RELEASED);
  return success();
}

// A look at all counts without a barrier. It shows what other threads took a while ago, and so spares most drops the
// sum below. The own count alone would not do: in memory that was used before, it may stand against other threads'
// slots.
bool Pool::seems_held(pinrail_registration_t* reg) const {
  int64_t references;
  host_->registrations->count_references(host_, &reg, 1, PINRAIL_SUM_QUIET, &references);
  return references > 0;
}

// For a drop by a thread that has no count of the registration: whether it is held by any, summed under a claim.
bool Pool::confirm_held(pinrail_registration_t* reg, uint64_t generation) {
  Guard guard(cache_->mutex);
  for (;;) {
    uint64_t word = state::load(reg);
    if (state::generation(word) != generation) return false;
    if ((word & state::kEvictClaim) != 0) return false;  // only idle ones stay claimed
    const bool indexed = (word & state::kIndexed) != 0;
    if (indexed && !state::exchange(reg, &word, word | state::kEvictClaim)) continue;
    int64_t references;
    if (indexed) rcache_.ops.hide(rcache_.module, &reg, 1);
    host_->registrations->count_references(host_, &reg, 1, PINRAIL_SUM_NOW, &references);
    // If a hit broke the claim meanwhile, the sum says nothing.
    const bool unbroken = !indexed || references::revoke_claim(reg);
    if (indexed) rcache_.ops.unhide(rcache_.module, reg);
    if (unbroken) return references > 0;
  }
}

}  // namespace pinrail::grdma
