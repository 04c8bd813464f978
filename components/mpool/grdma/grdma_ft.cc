// SPDX-License-Identifier: BSD-3-Clause
// F2: after a checkpoint the device knows nothing that is idle; after a restart the device gets nothing that was
// registered before it. API context. The caller holds no lock; the calling thread may hold references.
#include "base/core/on_unwind.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {
namespace {

constexpr uint64_t kMostRounds = 5000;  // of 200 us

}  // namespace

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
  if (gpu_ != nullptr) gpu_->ranges()->abandon_all(thread);
  abandon_all(thread);
  return success();
}

// Evicts what is idle, of this pool alone. Only what was not used since the call began, so that the call ends while
// other threads use the pool.
void Pool::release_idle(pinrail_thread_t* thread) {
  gc_.drain(thread, SIZE_MAX);  // may take only what an earlier call left over
  gc_.drain(thread, SIZE_MAX);
  const uint64_t now = cache_->epoch();
  epoch::move_on(cache_->epoch_word);  // afterwards, as each search: what it finds held is for later searches
  for (Victim victim = cache_->claim_of(this, now); victim.reg != nullptr; victim = cache_->claim_of(this, now)) {
    OnUnwind unwound([&] { deregistrar_.dismiss_and_free(thread, victim.reg); });
    evict_from_device(thread, victim);
    unwound.disarm();
    deregistrar_.dismiss_and_free(thread, victim.reg);
  }
  wait_until_idle(thread, kMostRounds);
}

// No other thread is in a call on a pool of the cache, but hooks may come in. All leave the index first: a hook holds
// the index's lock until what it removed is on the gc list, so afterwards no hook pushes any of them.
void Pool::abandon_all(pinrail_thread_t* thread) {
  rcache_.ops.invalidate_hook(rcache_.module, 0, UINTPTR_MAX, abandoned_hook, this);
  {
    Guard guard(cache_->mutex);
    assert_cache_held();
    // registered_ has all of them, and this thread alone frees them.
    registered_.forget_rollbacks_locked();
    gc_list_.forget_locked();
  }
  unindexed_.forget_displaced();
  release_all(thread, Device::restarted);
}

}  // namespace pinrail::grdma
