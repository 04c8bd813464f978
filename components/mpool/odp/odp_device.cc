// SPDX-License-Identifier: BSD-3-Clause
// Registers with the device and gives back; makes room under the limits. API context, with no lock held, but for
// displaced_hook(), which the index calls under its lock. The calling thread may hold references.
#include "components/mpool/odp/odp.h"
#include "framework/mpool/device_request.h"
#include "framework/mpool/messages.h"

namespace pinrail::odp {

// Bytes that a registration takes of the budget: none if it is of all memory.
uint64_t Pool::charge_of(const Span& span) const {
  return limits_of_registrar_.on_demand == PINRAIL_ON_DEMAND_IMPLICIT && span.base == page_mask_ + 1 &&
                 span.end == (UINTPTR_MAX & ~page_mask_)
             ? 0
             : span.length();
}

// Makes a registration that only the calling thread knows.
Status Pool::make(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg;
  misses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  Status status = host_->registrations->alloc(host_, limits_of_registrar_.tail_size, PINRAIL_COUNTING_SHARED, &reg);
  if (!status.ok()) return status;
  reg->base = reinterpret_cast<void*>(wanted.span.base);  // NOLINT(performance-no-int-to-ptr): an address
  reg->length = wanted.span.length();
  reg->rights = wanted.rights;
  reg->traits = wanted.traits;
  reg->pool = config_.pool;
  area_of(reg).owner = this;
  area_of(reg).charge = charge_of(wanted.span);
  touch(reg, __atomic_load_n(epoch_, __ATOMIC_RELAXED));  // relaxed: only the order of eviction depends on it
  OnUnwind unwound([&] { host_->registrations->free(host_, reg); });
  status = register_admitted(thread, reg);
  unwound.disarm();
  if (status.ok()) {
    *reg_out = reg;
  } else {
    host_->registrations->free(host_, reg);
  }
  return status;
}

Status Pool::register_admitted(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  Status status = admit(thread, reg);
  if (!status.ok()) return status;
  OnUnwind unwound([&] { cache_->dismiss(reg); });
  status = call_registrar(thread, reg);
  unwound.disarm();
  if (!status.ok()) cache_->dismiss(reg);
  return status;
}

// R7, R8: evicts until the limits hold it.
Status Pool::admit(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  for (;;) {
    const Status status = cache_->admit(reg);
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) report_limit(area_of(reg).charge);
    if (!status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) return status;
    if (!evict_one(thread, area_of(reg).charge)) return status;
  }
}

// Calls again as long as the device is out of resources and something idle can leave.
Status Pool::call_registrar(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const pinrail_register_request_t request = mpool::device_request(reg, PINRAIL_KIND_HOST);
  for (;;) {
    const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
    if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) return status;
    if (!evict_one(thread, 0)) {
      return cache_->usage().count > 1 ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_OUT_OF_RESOURCE;
    }
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  }
}

void Pool::report_limit(uint64_t bytes) {
  if (said_limit_.exchange(true)) return;
  const bool by_count = cache_->limits().count == 0;
  const mpool::ExceededLimit limit = {by_count ? "mpool_odp_count_limit" : "mpool_odp_size_limit",
                                      by_count ? cache_->limits().count : cache_->limits().bytes,
                                      by_count ? settings_.limits.explicit_count : settings_.limits.explicit_bytes};
  mpool::report_never_fits(host_, bytes, limit);
}

// Gives back the least recently used idle registration of the cache, if that helps to make room for so many bytes. It
// may be another pool's: that pool does not end meanwhile (odp/O4).
bool Pool::evict_one(pinrail_thread_t* thread, uint64_t bytes) {
  pinrail_registration_t* const victim = cache_->take_victim(bytes);
  if (victim == nullptr) return false;
  Pool* const owner = static_cast<Pool*>(area_of(victim).owner);
  const uint64_t charge = area_of(victim).charge;
  const auto finish = [&] {
    host_->registrations->free(host_, victim);
    cache_->dismiss_victim(charge);
  };
  OnUnwind unwound(finish);
  owner->evictions_.fetch_add(1, std::memory_order_relaxed);                  // relaxed: a statistic
  Status(owner->rcache_.ops.remove(owner->rcache_.module, victim)).ignore();  // NOT_FOUND: it was displaced just now
  Status(host_->pools->registrar_deregister(owner->config_.registrar, thread, victim, PINRAIL_REASON_EVICTED)).ignore();
  unwound.disarm();
  finish();
  return true;
}

// It is dead and has no reference.
void Pool::give_back(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const OnUnwind at_the_end([&] {  // also if the registrar ends its thread
    cache_->dismiss(reg);
    host_->registrations->free(host_, reg);
  });
  Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, PINRAIL_REASON_RELEASED))
      .ignore();  // the framework has reported it
}

void Pool::give_back_displaced(pinrail_thread_t* thread) {
  displaced_.drain([&](pinrail_registration_t* reg) { give_back(thread, reg); });
}

// An insert has made them superfluous.
void Pool::displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint64_t before;
    if (!kill(regs[i], &before)) continue;  // an evictor has it
    if (state::references(before) == 0) static_cast<Pool*>(pool)->displaced_.push_hook(regs[i]);
  }
}

// odp/O3.
Status Pool::drop(pinrail_thread_t* thread, pinrail_handle_t handle) {
  uint64_t after;
  const Drop dropped = drop_shared(handle, &after);
  if (dropped == Drop::stale) return PINRAIL_ERR_BAD_PARAM;
  if (dropped == Drop::was_last && (after & state::kDead) != 0) give_back(thread, handle.reg);
  return success();
}

pinrail_status_t Pool::deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle) {
  return guarded([&] { return static_cast<Pool*>(pool)->drop(thread, handle); });
}

Status Pool::evict(pinrail_thread_t* thread) { return evict_one(thread, 0) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND; }

Status Pool::progress(pinrail_thread_t* thread) {
  give_back_displaced(thread);
  return success();
}

// CHECKPOINT, TERM: what is idle leaves the device. RESTART is not supported: the device's state is lost.
Status Pool::ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (state == PINRAIL_FT_CONTINUE) return success();
  if (state == PINRAIL_FT_RESTART) return PINRAIL_ERR_NOT_SUPPORTED;
  while (evict_one(thread, 0)) {
  }
  give_back_displaced(thread);
  return success();
}

}  // namespace pinrail::odp
