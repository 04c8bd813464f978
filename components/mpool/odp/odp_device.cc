// SPDX-License-Identifier: BSD-3-Clause
// Registers with the device and gives back; makes room under the limits. API context, with no lock held, but for
// displaced_hook(), which the index calls under its lock. The calling thread may hold references.
#include <utility>

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
  Status status = alloc(wanted.span, wanted.rights, wanted.traits, &reg);
  if (!status.ok()) return status;
  reg->flags = wanted.flags;
  area_of(reg).charge = charge_of(wanted.span);
  status = register_admitted(thread, reg);
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
  status = call_registrar(thread, reg);
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

// Calls again as long as the device is out of resources and something idle can leave, and then once more: what another
// thread was giving back may have made room. The status then depends on what was registered during that last call.
Status Pool::call_registrar(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const pinrail_register_request_t request = mpool::device_request(reg, PINRAIL_KIND_HOST);
  mpool::Usage before;
  for (bool once_more = true;; before = cache_->usage()) {
    const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
    if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) return status;
    const bool was_alone = mpool::was_alone(before, cache_->usage());
    if (!evict_one(thread, 0) && !std::exchange(once_more, false)) {
      return was_alone ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
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
// may be another pool's: that pool does not end meanwhile (odp/O3).
bool Pool::evict_one(pinrail_thread_t* thread, uint64_t bytes) {
  pinrail_registration_t* const victim = cache_->take_victim(bytes);
  if (victim == nullptr) return false;
  Pool* const owner = static_cast<Pool*>(static_cast<Common*>(area_of(victim).owner));
  const uint64_t charge = area_of(victim).charge;
  owner->evictions_.fetch_add(1, std::memory_order_relaxed);                  // relaxed: a statistic
  Status(owner->rcache_.ops.remove(owner->rcache_.module, victim)).ignore();  // NOT_FOUND: it was displaced just now
  owner->deregister_from_device(thread, victim, PINRAIL_REASON_EVICTED);
  host_->registrations->free(host_, victim);
  cache_->dismiss_victim(charge);
  return true;
}

void Pool::give_back(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  deregister_and_free(thread, reg, PINRAIL_REASON_RELEASED);
}

// An insert has made them superfluous.
void Pool::displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (kill(regs[i]) == Killed::owned) static_cast<Pool*>(pool)->dead_.push_hook(regs[i]);
  }
}

Status Pool::evict(pinrail_thread_t* thread) { return evict_one(thread, 0) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND; }

Status Pool::progress(pinrail_thread_t* thread) {
  give_back_dead(thread);
  return success();
}

// CHECKPOINT, TERM: what is idle leaves the device. RESTART is not supported: the device's state is lost.
Status Pool::ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (state == PINRAIL_FT_CONTINUE) return success();
  if (state == PINRAIL_FT_RESTART) return PINRAIL_ERR_NOT_SUPPORTED;
  while (evict_one(thread, 0)) {
  }
  give_back_dead(thread);
  return success();
}

}  // namespace pinrail::odp
