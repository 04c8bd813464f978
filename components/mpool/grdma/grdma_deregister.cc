// SPDX-License-Identifier: BSD-3-Clause
// The way out: drop the reference; what is dead or not kept goes back to the device.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// The handle is of this life of its registration: the C face has looked.
inline Status Pool::deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
  if ((state::load(handle.reg) & state::kSummed) != 0) return drop_summed(thread, handle);
  if (!references::drop_dated(thread, handle.reg, cache_->epoch_word)) return drop_elsewhere(thread, handle);
  const uint64_t after = state::load(handle.reg);
  if ((after & state::kDead) != 0) ask_gc(thread, handle, after);
  return success();
}

// The pool of GPU memory, or this one.
Pool* Pool::owner_of(const pinrail_registration_t* reg) {
  return gpu_ != nullptr && area_of(reg).owner == gpu_->ranges() ? gpu_->ranges() : this;
}

// Whose it was is not known any more.
void Pool::dropped_dead(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after) {
  ask_gc(thread, handle, after);
  if (gpu_ != nullptr) gpu_->ranges()->ask_gc(thread, handle, after);
}

// If it was summed meanwhile, that sum may not have seen the drop; if not, the next one does.
void Pool::ask_gc(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after) {
  if (state::generation(after) != handle.generation) return;
  if (host_->settle_dead(host_, handle, PINRAIL_DEAD_DROPPED) == 1) {
    area_of(handle.reg).owner->give_back_dropped(thread, handle.reg);
  }
  drain_own(thread, kSome);
}

// Dead, and its drops are counted as they come.
Status Pool::drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle) {
  const int dropped = host_->settle_dead(host_, handle, PINRAIL_DEAD_DROP);
  if (dropped == 1) give_back_dropped(thread, handle.reg);
  return dropped < 0 ? PINRAIL_ERR_BAD_PARAM : PINRAIL_SUCCESS;
}

// The calling thread did not take it, or it is counted in the state word, or the handle is spent.
Status Pool::drop_elsewhere(pinrail_thread_t* thread, pinrail_handle_t handle) {
  const uint64_t word = state::load(handle.reg);
  if (state::generation(word) != handle.generation) return PINRAIL_ERR_BAD_PARAM;
  if ((word & state::kPerThread) == 0) return drop_in_word(thread, handle);
  const bool doubtful = !references::has_count(thread, handle.reg) && references::own_count(handle.reg) == 0;
  if (doubtful && !confirm_held(handle.reg, handle.generation)) return PINRAIL_ERR_BAD_PARAM;
  const uint64_t after = references::drop_counted(thread, handle.reg);
  if ((after & state::kDead) != 0) ask_gc(thread, handle, after);
  return success();
}

pinrail_status_t Pool::deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle) {
  return guarded([&] { return static_cast<Pool*>(pool)->owner_of(handle.reg)->deregister(thread, handle); });
}

// Counted in the state word: the last drop is known, and acts.
Status Pool::drop_in_word(pinrail_thread_t* thread, pinrail_handle_t handle) {
  uint64_t word;
  const Drop dropped = drop_shared(handle, &word);
  if (dropped == Drop::stale) return PINRAIL_ERR_BAD_PARAM;
  if (dropped == Drop::done) return success();
  if ((word & state::kIndexed) != 0) {
    // Somebody may have taken a new reference since, or an event may have killed it: then it is theirs.
    if (!claim(handle.reg, word)) return success();
    Status(rcache_.ops->remove(rcache_.module, handle.reg)).ignore();  // NOT_FOUND: a find saw it dead and removed it
  }
  to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: dismiss() takes the lock
  give_back(thread, handle.reg, PINRAIL_REASON_RELEASED);
  return success();
}

}  // namespace pinrail::grdma
