// SPDX-License-Identifier: BSD-3-Clause
// R10: without references everything goes back to the device; with references only if the caller insists.
#include <algorithm>
#include <string>
#include <vector>

#include "components/mpool/grdma/grdma_gpu.h"
#include "framework/mpool/say.h"

namespace pinrail::grdma {

Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  const bool force = (flags & PINRAIL_DESTROY_FORCE) != 0;
  if (gpu_ != nullptr && !gpu_->ranges()->close_if_idle(force)) return PINRAIL_ERR_BUSY;
  if (!close_if_idle(force)) {
    if (gpu_ != nullptr) gpu_->ranges()->open_again();
    return PINRAIL_ERR_BUSY;
  }
  if (settings_.print_stats) {
    pinrail_mpool_stats_t figures{};
    stats(&figures);
    mpool::say_stats(host_, figures);
  }
  if (gpu_ != nullptr) gpu_->end(thread);
  gpu_.reset();
  end_all(thread);
  return success();
}

void Pool::open_again() {
  Guard guard(cache_->mutex);
  closing_ = false;
}

// Closed: ends with `delete this`.
void Pool::end_all(pinrail_thread_t* thread) {
  leave_gc_thread();
  host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
  settle(thread, UINT64_MAX);
  release_all(thread, Device::knows);
  if (starts_ != nullptr) host_->forget_notes(host_, starts_);
  rcache_.ops->destroy(rcache_.module);
  leave_cache();
  delete this;
}

size_t Pool::referenced() const {
  const size_t of_gpu = gpu_ != nullptr ? gpu_->ranges()->referenced() : 0;
  Guard guard(cache_->mutex);
  return of_gpu + count_referenced(nullptr);
}

// list_out: the first few, in words.
size_t Pool::count_referenced(std::string* list_out) const {
  mpool::Referenced referenced(list_out);
  for (pinrail_registration_t* reg = all_; reg != nullptr; reg = area_of(reg).next) {
    referenced.look_at(reg, references_of(reg));
  }
  return referenced.count();
}

// Sure only if nobody can take one meanwhile; else what was seen.
int64_t Pool::references_of(pinrail_registration_t* reg) const {
  const uint64_t word = state::load(reg);
  if ((word & state::kPerThread) == 0) return static_cast<int64_t>(state::references(word));
  int64_t references;
  host_->count_references(host_, &reg, 1, &references);
  return references;
}

// From now on other pools of the cache leave this one alone. False, with nothing changed, if something is referenced.
bool Pool::close_if_idle(bool force) {
  std::string list;
  size_t referenced = 0;
  {
    Guard guard(cache_->mutex);
    if (!force) referenced = count_referenced(&list);
    closing_ = referenced == 0;
    if (closing_) return true;
  }
  mpool::say_busy(host_, referenced, list);
  return false;
}

// What other threads are giving back, or draining, of this pool comes to its end; or so many rounds of 200 us pass.
void Pool::settle(pinrail_thread_t* thread, uint64_t rounds) {
  for (; rounds != 0; --rounds) {
    drain_own(thread, SIZE_MAX);
    // acquire: pairs with the release decrements of give_back() and drain_all().
    const uint64_t busy = visitors_.load(std::memory_order_acquire) + to_release_.load(std::memory_order_acquire) +
                          draining_.load(std::memory_order_acquire);
    if (busy == 0) return;
    Guard guard(cache_->mutex);
    cache_->released.wait_for(cache_->mutex, std::chrono::microseconds(200));
  }
}

void Pool::release_all(pinrail_thread_t* thread, Device device) {
  for (;;) {
    pinrail_registration_t* reg;
    {
      Guard guard(cache_->mutex);
      reg = all_;
    }
    if (reg == nullptr) return;
    release_one(thread, reg, device);
  }
}

// Nobody else is at this pool any more. A referenced one is made an orphan: its handles may still be deregistered, and
// are counted in its word from now on.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, Device device) {
  Status(rcache_.ops->remove(rcache_.module, reg)).ignore();  // NOT_FOUND: it was not indexed
  const int64_t references = references_of(reg);
  const uint64_t flags = (state::load(reg) & state::kPerThread) | state::kDead;
  to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: only this thread is left
  const uint64_t word = state::set(reg, flags);
  tell_device_off(thread, reg, PINRAIL_REASON_FINALIZED, device);
  cache_->dismiss(this, reg);
  if (references <= 0) {
    references::forgive(reg, references);
    end(reg, this);
    return;
  }
  state::set(reg, flags | state::kOrphan, static_cast<int>(references - state::signed_references(word)));
  to_release_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace pinrail::grdma
