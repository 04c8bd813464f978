// SPDX-License-Identifier: BSD-3-Clause
// Deferred deregistration: what events ended while it was idle goes back to the device. API context, also on the gc
// thread. The caller holds no lock, because the registrar is called. The calling thread may hold references.
#include <algorithm>

#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {
namespace {

// Few at a time, because a thread may wait for the room while the device deregisters the others.
constexpr size_t kTogether = 8;
// An event may end tens of thousands, and one call shall not wait for all of them.
constexpr size_t kInOneCall = 32;

}  // namespace

// Gives back what is dead, at most so many; of what events end meanwhile no more than there was. Returns how many.
size_t Pool::drain(pinrail_thread_t* thread, size_t most) {
  uint64_t bytes = gc_list_.bytes();
  size_t given_back = 0;
  while (given_back < most) {
    pinrail_registration_t* regs[kTogether];
    const size_t count = cache_->take_dead(this, regs, std::min(kTogether, most - given_back));
    if (count == 0) break;
    uint64_t taken = 0;
    for (size_t i = 0; i < count; ++i) taken += regs[i]->length;
    give_back(thread, regs, count, PINRAIL_REASON_RELEASED);  // an event has left its own reason
    given_back += count;
    if (taken >= bytes && gc_list_.bytes() != 0 && most == SIZE_MAX) break;
    bytes -= std::min(bytes, taken);
  }
  return given_back;
}

// In a call that may miss: all if more than gc_limit bytes are dead (E4), otherwise some.
void Pool::drain_in_call(pinrail_thread_t* thread) {
  if (has_dead()) drain(thread, gc_list_.is_due() ? SIZE_MAX : kInOneCall);
}

// Drains the pools of the cache that have something dead and that a call into this one may drain; if these are more
// than it can visit, the next call finds the others.
size_t Pool::drain_all(pinrail_thread_t* thread) {
  constexpr size_t kPools = 64;
  Pool* pools[kPools];
  const size_t count = cache_->visit_dead(this, pools, kPools);
  size_t given_back = 0;
  for (size_t i = 0; i < count; ++i) {
    given_back += pools[i]->drain(thread, kInOneCall);
    pools[i]->end_visit();
  }
  return given_back;
}

// For pinrail_mpool_progress(): drains all.
Status Pool::progress(pinrail_thread_t* thread) {
  drain(thread, SIZE_MAX);
  return gpu_ != nullptr ? gpu_->ranges()->progress(thread) : success();
}

// For the gc thread: drains everything that was dead when it began. What was pushed meanwhile has woken the thread
// again, unless the list was not empty then: 1 asks for another round.
int Pool::drain_entry(void* pool_pointer, pinrail_thread_t* thread) {
  auto* const pool = static_cast<Pool*>(pool_pointer);
  const Status drained = guarded([&] {
    pool->drain(thread, SIZE_MAX);
    return success();
  });
  return !drained.ok() || pool->has_dead() ? 1 : 0;
}

}  // namespace pinrail::grdma
