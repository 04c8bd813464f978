// SPDX-License-Identifier: BSD-3-Clause
// R10: destroys a pool. Everything goes back to the device; if something is referenced, only with FORCE. API context.
// The caller holds no lock, and no other thread is in a call on the pool; calls on other pools of the cache, the gc
// thread and hooks may reach it until it is closed, has left the gc thread and is unsubscribed.
#include <string>

#include "components/mpool/grdma/grdma_gpu.h"
#include "framework/mpool/messages.h"

namespace pinrail::grdma {

// BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  const bool force = (flags & PINRAIL_DESTROY_FORCE) != 0;
  if (gpu_ != nullptr && !gpu_->ranges()->close_if_idle(force)) return PINRAIL_ERR_BUSY;
  if (!close_if_idle(force)) {
    if (gpu_ != nullptr) gpu_->ranges()->reopen();
    return PINRAIL_ERR_BUSY;
  }
  if (settings_.print_stats) mpool::report_last_stats(host_, this);
  if (gpu_ != nullptr) gpu_->destroy_ranges(thread);
  gpu_.reset();
  destroy_closed(thread);
  return success();
}

// The reverse of close_if_idle().
void Pool::reopen() {
  Guard guard(cache_->mutex);
  closing_ = false;
}

// The pool is closed. Ends with `delete this`.
void Pool::destroy_closed(pinrail_thread_t* thread) {
  gc_list_.leave_thread();
  wait_until_idle(thread, UINT64_MAX);
  unindexed_.forget_displaced();
  release_all(thread, Device::registered);
  host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
  if (start_table_ != nullptr) shortcut::of(host_)->forget_notes(start_table_);
  rcache_.ops.destroy(rcache_.module);
  leave_cache();
  delete this;
}

// How many registrations are referenced, of host and GPU memory.
size_t Pool::referenced() { return (gpu_ != nullptr ? gpu_->ranges()->referenced() : 0) + count_referenced(nullptr); }

// list_out: the first few, in words; or NULL. No other thread is in a call on this pool (R10).
size_t Pool::count_referenced(std::string* list_out) {
  mpool::Referenced referenced(list_out);
  registered_.count_referenced(&referenced);
  return referenced.count();
}

// From now on calls into other pools of the cache leave this one alone. False, with nothing changed, if something is
// referenced and `force` is not set.
bool Pool::close_if_idle(bool force) {
  {
    Guard guard(cache_->mutex);
    closing_ = true;
  }
  if (force) return true;
  std::string list;
  const size_t referenced = count_referenced(&list);
  if (referenced == 0) return true;
  reopen();
  mpool::report_busy(host_, referenced, list);
  return false;
}

// Waits until no other thread gives back registrations of this pool or drains it; or until so many rounds of 200 us
// have passed.
void Pool::wait_until_idle(pinrail_thread_t* thread, uint64_t rounds) {
  for (; rounds != 0; --rounds) {
    gc_.drain(thread, SIZE_MAX);
    if (in_flight_.is_idle()) return;
    Guard guard(cache_->mutex);
    cache_->released.wait_for(cache_->mutex, std::chrono::microseconds(200));
  }
}

// From here on only hooks come into this pool. An event of a callback must still reach what was not given back yet
// (R12), so each registration leaves the index only when it is its turn.
void Pool::release_all(pinrail_thread_t* thread, Device device) {
  pinrail_registration_t* batch[Registered::kQuietBatch];
  int64_t references[Registered::kQuietBatch];
  while (const size_t count = registered_.next_to_release(batch)) {
    host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_QUIET, references);
    for (size_t i = 0; i < count; ++i) {
      Status(rcache_.ops.remove(rcache_.module, batch[i])).ignore();  // NOT_FOUND: it was not indexed
      release_one(thread, batch[i], references[i], device);
    }
  }
}

// A referenced one becomes an orphan: its handles may still be deregistered, and the library counts their drops one by
// one.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, int64_t references, Device device) {
  const uint64_t kept = state::load(reg) & (state::kPerThread | state::kSummed);
  in_flight_.begin_releases(1);
  state::set(reg, kept | state::kDead);
  deregistrar_.deregister(thread, reg, PINRAIL_REASON_FINALIZED, device);
  cache_->dismiss(this, reg);
  if (!references::is_held_at_destroy(host_, reg, references)) {
    deregistrar_.free_dismissed(thread, reg);
    return;
  }
  state::set(reg, (state::load(reg) & state::kFlags) | state::kOrphan);
  in_flight_.end_releases(thread, 1);
}

}  // namespace pinrail::grdma
