// SPDX-License-Identifier: BSD-3-Clause
// The way in: a hit, or a miss -> registrar -> index.
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {
namespace {

// R13: a range that goes away while it is being registered is tried again this often.
constexpr int kRetriesAfterRace = 3;

}  // namespace

inline void Pool::count_hit(const pinrail_thread_t* thread) {
  if (thread->index < kHitCounts - 1) {
    // relaxed, and no read-modify-write: this thread alone writes here, readers only want the figure.
    std::atomic<uint64_t>& hits = hits_[thread->index].hits;
    hits.store(hits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  } else {
    hits_[kHitCounts - 1].hits.fetch_add(1, std::memory_order_relaxed);
  }
}

inline bool Pool::hit(pinrail_thread_t* thread, const Span& span, const pinrail_mpool_request_t& request,
                      pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg;
  if (rcache_.ops->find(rcache_.module, thread, span.base, span.length(), request.rights, request.traits, &reg) !=
      PINRAIL_SUCCESS) {
    return false;
  }
  touch(reg, cache_->epoch());
  count_hit(thread);
  *reg_out = reg;
  return true;
}

inline Status Pool::register_mem(pinrail_thread_t* thread, const pinrail_mpool_request_t& request,
                                 pinrail_registration_t** reg_out) {
  Span span = Span::of(request.addr, request.length);
  if (!round_out(&span, limits_of_registrar_.granularity)) return PINRAIL_ERR_BAD_PARAM;
  drain_if_due(thread);
  if ((request.flags & PINRAIL_FLAG_CACHE_BYPASS) == 0 && hit(thread, span, request, reg_out)) return success();
  return miss(thread, span, request, reg_out);
}

pinrail_status_t Pool::register_entry(void* pool, pinrail_thread_t* thread, const pinrail_mpool_request_t* request,
                                      pinrail_registration_t** reg_out) {
  return guarded([&] { return static_cast<Pool*>(pool)->register_mem(thread, *request, reg_out); });
}

Status Pool::find(pinrail_thread_t* thread, const pinrail_mpool_request_t& request, pinrail_registration_t** reg_out) {
  Span span = Span::of(request.addr, request.length);
  if (!round_out(&span, limits_of_registrar_.granularity)) return PINRAIL_ERR_BAD_PARAM;
  drain_if_due(thread);
  if (hit(thread, span, request, reg_out)) return success();
  if (rcache_.ops->find_locked(rcache_.module, thread, span.base, span.length(), request.rights, request.traits,
                               reg_out) != PINRAIL_SUCCESS) {
    return PINRAIL_ERR_NOT_FOUND;
  }
  count_hit(thread);
  return success();
}

Status Pool::miss(pinrail_thread_t* thread, const Span& span, const pinrail_mpool_request_t& asked,
                  pinrail_registration_t** reg_out) {
  const pinrail_mpool_request_t request{span.base, span.length(), asked.rights, asked.traits, asked.flags};
  const pinrail_registrar_t& device = limits_of_registrar_;
  if (device.max_length != 0 && request.length > device.max_length) return PINRAIL_ERR_NOT_SUPPORTED;
  drain_own(thread);
  // A thread that is inside its own registrar call would wait for itself: it gets one of its own (R5).
  if ((request.flags & PINRAIL_FLAG_CACHE_BYPASS) != 0 || thread->in_registrar != 0) {
    return register_uncached(thread, request, reg_out);
  }
  Pending own;
  if (enter(thread, request, &own, reg_out)) {
    count_hit(thread);
    return success();
  }
  misses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  cache_->advance_epoch();
  const Status status = register_indexed(thread, request, &own, reg_out);
  leave(&own);
  drain_own(thread);  // what the new one displaced
  return status;
}

Status Pool::register_uncached(pinrail_thread_t* thread, const pinrail_mpool_request_t& request,
                               pinrail_registration_t** reg_out) {
  misses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  cache_->advance_epoch();
  pinrail_registration_t* reg;
  const Status status = tell_device(thread, request, request.rights, PINRAIL_COUNTING_SHARED, &reg);
  if (!status.ok()) return status;
  state::set(reg, state::kDead, 1);
  *reg_out = reg;
  return success();
}

Status Pool::register_indexed(pinrail_thread_t* thread, const pinrail_mpool_request_t& request, Pending* own,
                              pinrail_registration_t** reg_out) {
  for (int tries = 0; tries <= kRetriesAfterRace; ++tries) {
    bool raced = false;
    const Status status = attempt(thread, request, own, reg_out, &raced);
    if (!raced) return status;
    races_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
  return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

// Once through the device and into the index.
Status Pool::attempt(pinrail_thread_t* thread, const pinrail_mpool_request_t& request, Pending* own,
                     pinrail_registration_t** reg_out, bool* raced_out) {
  const Status prepared = rcache_.ops->prepare(rcache_.module, own->rights, request.traits);
  if (!prepared.ok()) return prepared;
  pinrail_registration_t* reg;
  const bool kept = is_kept(request.flags);
  const pinrail_counting_t counting = kept ? PINRAIL_COUNTING_THREADS : PINRAIL_COUNTING_SHARED;
  const Status status = tell_device(thread, request, own->rights, counting, &reg);
  if (!status.ok()) {
    rcache_.ops->cancel(rcache_.module);
    return status;
  }
  const Published published = publish(thread, own, reg);
  if (published == Published::raced) {
    *raced_out = true;
    to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: dismiss() takes the lock
    give_back(thread, reg, PINRAIL_REASON_INVALIDATED);
    return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  }
  if (kept && published == Published::indexed) list(reg);
  if (kept && published == Published::alone) put_in_limbo(reg);
  *reg_out = reg;
  return success();
}

}  // namespace pinrail::grdma
