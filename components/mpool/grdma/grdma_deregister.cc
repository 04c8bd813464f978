// SPDX-License-Identifier: BSD-3-Clause
// The way out: drop the reference; what is dead or not kept goes back to the device.
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

Status Pool::deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
  touch(handle.reg, cache_->epoch());
  uint64_t word;
  switch (drop(handle, &word)) {
    case Drop::stale: return PINRAIL_ERR_BAD_PARAM;
    case Drop::must_act: last_drop(thread, handle, word); break;
    case Drop::done: break;
  }
  return success();
}

// The last reference is gone, and a flag says that somebody must act: this thread.
void Pool::last_drop(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t word) {
  if ((word & state::kDead) != 0) {
    to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: dismiss() takes the lock
    give_back(thread, handle.reg, PINRAIL_REASON_RELEASED);
  } else if ((word & state::kTransient) != 0) {
    // Somebody may have taken a new reference since, or an event may have killed it: then it is theirs.
    if (!claim_idle(handle.reg, word)) return;
    to_release_.fetch_add(1, std::memory_order_relaxed);  // as above
    Status(rcache_.ops->remove(rcache_.module, handle.reg)).ignore();  // NOT_FOUND: a find saw it dead and removed it
    give_back(thread, handle.reg, PINRAIL_REASON_RELEASED);
  } else {
    list_idle(handle);
  }
}

// A parked registration became idle: back onto the LRU list, if that is still so.
void Pool::list_idle(pinrail_handle_t handle) {
  Guard guard(cache_->mutex);
  uint64_t word = state::load(handle.reg);
  do {
    const bool still = state::generation(word) == handle.generation && state::references(word) == 0 &&
                       (word & state::kIndexed) != 0 && (word & state::kParked) != 0;
    if (!still) return;
  } while (!state::exchange(handle.reg, &word, word & ~state::kParked));
  lru_list_.insert(handle.reg, last_use(handle.reg));
}

}  // namespace pinrail::grdma
