// SPDX-License-Identifier: BSD-3-Clause
// The way out: drops a reference; what is dead, or not kept, goes back to the device with the last one. Eviction goes
// the same way. API context. The caller holds no lock, because the registrar may be called. The calling thread may hold
// references.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// The pool of GPU memory, or this one.
Pool* Pool::owner_of(const pinrail_registration_t* reg) {
  return gpu_ != nullptr && area_of(reg).owner == gpu_->ranges()->number_ ? gpu_->ranges() : this;
}

// Drops one reference. The C face has checked that the handle is of this incarnation of its registration. BAD_PARAM: it
// was dropped before.
Status Pool::deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
  switch (drop(handle)) {
    case Drop::stale: return PINRAIL_ERR_BAD_PARAM;
    case Drop::done: break;
    case Drop::idle: cache_->unpark(handle); break;
    case Drop::last: owner_of(handle.reg)->give_back_one(thread, handle.reg, PINRAIL_REASON_RELEASED); break;
  }
  return success();
}

pinrail_status_t Pool::deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle) {
  return guarded([&] { return static_cast<Pool*>(pool)->deregister(thread, handle); });
}

// The calling thread owns it. Whatever the registrar returns, the registration is lost to the pool; the framework
// reports an error.
void Pool::deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                                  Device device) {
  remove_from_index(reg);
  if (reason == PINRAIL_REASON_EVICTED) reasons_.ended_hook(span_of(reg), {});
  outside_.unlink(reg);
  if (is_invalidated(reg)) reason = PINRAIL_REASON_INVALIDATED;  // the memory may be another's by now (R12)
  if (device == Device::restarted) {
    host_->pools->registrar_abandon(config_.registrar, thread, reg, reason);
  } else {
    Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, reason)).ignore();
  }
}

// Deregisters them, takes them from the budget in one hold of the lock, and frees them. The caller owns them, and has
// called Cache::begin_release().
void Pool::give_back(pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count,
                     pinrail_reason_t reason) {
  for (size_t i = 0; i < count; ++i) deregister_from_device(thread, regs[i], reason);
  cache_->dismiss(regs, count);
  for (size_t i = 0; i < count; ++i) host_->registrations->free(host_, regs[i]);
}

void Pool::give_back_one(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
  cache_->begin_release(1);
  give_back(thread, &reg, 1, reason);
}

void Pool::give_back_displaced(pinrail_thread_t* thread, const Displaced& displaced) {
  char* const* const chunks = shortcut::of(host_)->chunks;
  for (uint32_t number = displaced.first; number != 0;) {
    pinrail_registration_t* const reg = arena::numbered(chunks, number);
    number = __atomic_load_n(&reg->used, __ATOMIC_RELAXED);
    give_back_one(thread, reg, PINRAIL_REASON_RELEASED);
  }
}

// Of Cache::retire_next() or Cache::admit().
void Pool::give_back_victim(pinrail_thread_t* thread, const Victim& victim) {
  victim.owner->give_back(thread, &victim.reg, 1, PINRAIL_REASON_EVICTED);
  if (victim.owner != this) victim.owner->end_visit();
}

// Evicts the next idle registration of the cache. False: none is idle.
bool Pool::evict_one(pinrail_thread_t* thread) {
  const Victim victim = cache_->retire_next(this);
  if (victim.reg == nullptr) return false;
  give_back_victim(thread, victim);
  return true;
}

// Parameter empty_cache: everything idle goes.
void Pool::evict_all(pinrail_thread_t* thread) {
  while (evict_one(thread)) {
  }
}

// For pinrail_mpool_evict(). NOT_FOUND: nothing is idle.
Status Pool::evict(pinrail_thread_t* thread) {
  drain(thread, SIZE_MAX);
  return evict_one(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

}  // namespace pinrail::grdma
