// SPDX-License-Identifier: BSD-3-Clause
// The ends of a pool's registrations all at once. R10: destroying a pool; F2: after a checkpoint the device knows
// nothing that is idle, and after a restart the device gets nothing that was registered before it. API context. The
// caller holds no lock. During destroy no other thread is in a call on the pool; calls on other pools of the cache, the
// gc thread and hooks may reach it until it is closed, has left the gc thread and is unsubscribed.
#include <string>

#include "components/mpool/grdma/grdma_gpu.h"
#include "framework/mpool/messages.h"

namespace pinrail::grdma {
namespace {

constexpr size_t kBatch = 64;

}  // namespace

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

// From now on calls into other pools of the cache leave this one alone. False, with nothing changed, if something is
// referenced and `force` is not set.
bool Pool::close_if_idle(bool force) {
  {
    Guard guard(cache_->mutex);
    is_closing_ = true;
  }
  if (force) return true;
  std::string list;
  mpool::Referenced referenced(&list);
  cache_->count_referenced(this, &referenced);
  if (referenced.count() == 0) return true;
  reopen();
  mpool::report_busy(host_, referenced.count(), list);
  return false;
}

// The reverse of close_if_idle().
void Pool::reopen() {
  Guard guard(cache_->mutex);
  is_closing_ = false;
}

// The pool is closed. Ends with `delete this`.
void Pool::destroy_closed(pinrail_thread_t* thread) {
  leave_gc_thread();
  while (visitors_.load(std::memory_order_acquire) != 0) {  // acquire: pairs with end_visit()
    Guard guard(cache_->mutex);
    cache_->released.wait_for(cache_->mutex, std::chrono::microseconds(200));
  }
  release_all(thread, Device::registered);
  host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
  rcache_.ops.destroy(rcache_.module);
  leave_cache();
  delete this;
}

// How many registrations are referenced, of host and GPU memory.
size_t Pool::referenced() {
  mpool::Referenced referenced(nullptr);
  cache_->count_referenced(this, &referenced);
  return (gpu_ != nullptr ? gpu_->ranges()->referenced() : 0) + referenced.count();
}

// Only hooks come into this pool meanwhile. An event of a callback must still reach what was not given back yet (R12),
// so each registration leaves the index only when it is its turn. What hooks end comes onto the gc list, and other
// pools of the cache may move this one's registrations in the array: so it looks again until nothing is left.
void Pool::release_all(pinrail_thread_t* thread, Device device) {
  for (bool is_left = true; is_left;) {
    is_left = false;
    pinrail_registration_t* batch[kBatch];
    while (const size_t count = cache_->take_dead(this, batch, kBatch)) {
      for (size_t i = 0; i < count; ++i) release_one(thread, batch[i], device);
    }
    size_t place = SIZE_MAX;
    while (const size_t count = cache_->next_of(this, &place, batch, kBatch)) {
      is_left = true;
      for (size_t i = 0; i < count; ++i) {
        if (orphan(batch[i]) == Killed::no) continue;  // a hook owns it
        cache_->begin_release(1);
        release_one(thread, batch[i], device);
      }
    }
  }
}

// The calling thread owns it, or it is an orphan: its handles may still be deregistered, and the last one frees it.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, Device device) {
  const bool is_orphan = (state::load(reg) & state::kLast) == 0;
  deregister_from_device(thread, reg, PINRAIL_REASON_FINALIZED, device);
  cache_->dismiss(&reg, 1);
  if (!is_orphan) host_->registrations->free(host_, reg);
}

// CONTINUE does nothing; RESTART abandons all; other events give back what is dead or idle.
Status Pool::ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (state == PINRAIL_FT_CONTINUE) return success();
  if (state == PINRAIL_FT_RESTART) return restart(thread);
  if (gpu_ != nullptr) gpu_->ranges()->release_idle(thread);
  release_idle(thread);
  return success();
}

// The registrars come first, because they may refuse.
Status Pool::restart(pinrail_thread_t* thread) {
  Status told = host_->pools->registrar_restart(config_.registrar, thread);
  if (told.ok() && gpu_ != nullptr) told = gpu_->tell_registrar(thread);
  if (!told.ok()) return told;
  if (gpu_ != nullptr) gpu_->ranges()->release_all(thread, Device::restarted);
  release_all(thread, Device::restarted);
  return success();
}

// Evicts what is idle, of this pool alone, in one walk, so that the call ends while other threads use the pool; and
// waits until what other threads are giving back has gone.
void Pool::release_idle(pinrail_thread_t* thread) {
  constexpr int kMostRounds = 5000;  // of 200 us
  drain(thread, SIZE_MAX);
  pinrail_registration_t* batch[kBatch];
  size_t place = SIZE_MAX;
  while (const size_t count = cache_->retire_of(this, &place, batch, kBatch)) {
    give_back(thread, batch, count, PINRAIL_REASON_EVICTED);
  }
  for (int rounds = 0; rounds < kMostRounds && cache_->wait_for_release(); ++rounds) {
  }
}

}  // namespace pinrail::grdma
