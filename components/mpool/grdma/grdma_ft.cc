// SPDX-License-Identifier: BSD-3-Clause
// F2: a checkpoint finds nothing idle at the device, and after a restart nothing of the past life is given to it.
#include "base/core/on_unwind.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {
namespace {

constexpr uint64_t kPatience = 5000;  // rounds of 200 us

}  // namespace

Status Pool::ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (state == PINRAIL_FT_CONTINUE) return success();
  if (state == PINRAIL_FT_RESTART) return restart(thread);
  if (gpu_ != nullptr) gpu_->ranges()->release_idle(thread);
  release_idle(thread);
  return success();
}

// The registrars first, for they may refuse. What is registered by which, both forget.
Status Pool::restart(pinrail_thread_t* thread) {
  Status told = host_->registrar_restart(config_.registrar, thread);
  if (told.ok() && gpu_ != nullptr) told = gpu_->tell_registrar(thread);
  if (!told.ok()) return told;
  if (gpu_ != nullptr) gpu_->ranges()->abandon_all(thread);
  abandon_all(thread);
  return success();
}

// Of this pool alone. What is used from now on is not looked for, so that it ends while others use the pool.
void Pool::release_idle(pinrail_thread_t* thread) {
  drain_own(thread, SIZE_MAX);  // what an earlier call left over
  drain_own(thread, SIZE_MAX);  // what has come since
  epoch::move_on(host_->epoch);
  const uint64_t now = cache_->epoch();
  for (Victim victim = cache_->claim_of(this, now); victim.reg != nullptr; victim = cache_->claim_of(this, now)) {
    OnUnwind unwound([&] { dismiss_and_end(victim.reg, this); });
    leave_device(thread, victim);
    unwound.disarm();
    dismiss_and_end(victim.reg, this);
  }
  settle(thread, kPatience);
}

// Nobody else is at this pool or another one of its cache, hooks apart. First all leave the index: a hook that has one
// in its hands holds the index's lock until it has put it on the gc list, so that none comes there later.
void Pool::abandon_all(pinrail_thread_t* thread) {
  rcache_.ops->invalidate_hook(rcache_.module, 0, UINTPTR_MAX, abandoned_hook, this);
  {
    Guard guard(cache_->mutex);
    // relaxed: all that stand there are in all_, too, and this thread alone frees them.
    limbo_undone_.store(kNoLimbo, std::memory_order_relaxed);
    gc_rest_.store(nullptr, std::memory_order_relaxed);
    gc_list_.store(nullptr, std::memory_order_relaxed);
    gc_bytes_.store(0, std::memory_order_relaxed);
    gc_count_.store(0, std::memory_order_relaxed);
    gc_due_.store(false, std::memory_order_relaxed);
  }
  forget_displaced();
  release_all(thread, Device::forgot);
}

}  // namespace pinrail::grdma
