// SPDX-License-Identifier: BSD-3-Clause
// The way in: a hit, or a miss -> registrar -> index.
#include "base/core/on_unwind.h"
#include "base/hit/start_table.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {
namespace {

// R13: a range that goes away while it is being registered is tried again this often.
constexpr int kRetriesAfterRace = 3;

// A persistent registration goes with its last reference; what is cached does not.
bool is_what_was_asked_for(const Request& request, const pinrail_registration_t* reg) {
  return !request.has(PINRAIL_FLAG_PERSISTENT) || (reg->flags & PINRAIL_FLAG_PERSISTENT) != 0;
}

}  // namespace

// An EXACT pool's index has no starts, it knows only those of whole pages, and a pool that keeps nothing has nothing
// that is counted per thread.
bool Pool::lends_start_table() const {
  return start_table_ != nullptr && settings_.leave_pinned && start_table::is_start(page_mask_ + 1);
}

pinrail_shortcut_t Pool::shortcut() {
  if (!lends_start_table()) return {};
  return {start_table_, page_mask_, hits_.lines(), HitCounts::kAlone, nullptr};
}

inline bool Pool::hit(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out, StartTable starts) {
  auto* const find = starts == StartTable::seen ? rcache_.ops->find_elsewhere : rcache_.ops->find;
  pinrail_registration_t* reg =
      find(rcache_.module, thread, span.base, span.length(), static_cast<uint32_t>(access_and_flags));
  if (reg == nullptr) return false;
  hits_.add(thread);
  *handle_out = {reg, generation_of(reg)};
  return true;
}

// What the C face did not answer by the shortcut; it has seen to it that addr + length does not wrap.
pinrail_status_t Pool::register_entry(void* pool_pointer, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                      uint64_t access_and_flags, pinrail_handle_t* handle_out) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  // One that is cached but not persistent is no answer to who wants a pin of his own.
  constexpr uint64_t kNoHit = uint64_t{PINRAIL_FLAG_CACHE_BYPASS | PINRAIL_FLAG_PERSISTENT}
                              << PINRAIL_ACCESS_FLAGS_SHIFT;
  Span span = Span::of(addr, length);
  if (!round_out(&span, pool->page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  // relaxed: a hint; the gc list itself is taken with an acquire.
  const bool usual = !pool->gc_due_.load(std::memory_order_relaxed) && (access_and_flags & kNoHit) == 0;
  // What the C face looks at before it asks.
  const bool seen = pool->lends_start_table() && thread->index < HitCounts::kAlone &&
                    access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT == 0;
  if (usual && pool->hit(thread, span, access_and_flags, handle_out, seen ? StartTable::seen : StartTable::unseen))
    return PINRAIL_SUCCESS;
  if (pool->gpu_ != nullptr) return pool->gpu_entry(thread, addr, length, access_and_flags, handle_out);
  return pool->miss_entry(thread, span.base, span.end, access_and_flags, handle_out);
}

// No hit among host memory: it may be memory of a GPU.
pinrail_status_t Pool::gpu_entry(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                                 pinrail_handle_t* handle_out) {
  const pinrail_status_t status =
      guarded([&] { return gpu_->register_mem(thread, addr, length, access_and_flags, handle_out); });
  if (status != PINRAIL_ERR_NOT_FOUND) return status;
  Span span = Span::of(addr, length);
  if (!round_out(&span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  return miss_entry(thread, span.base, span.end, access_and_flags, handle_out);
}

// Of GPU memory, whole.
Status Pool::register_known(pinrail_thread_t* thread, const Request& request, bool* is_hit_out,
                            pinrail_registration_t** reg_out) {
  pinrail_handle_t handle{};
  drain_if_due(thread);
  *is_hit_out = (request.flags() & (PINRAIL_FLAG_CACHE_BYPASS | PINRAIL_FLAG_PERSISTENT)) == 0 &&
                hit(thread, request.span, request.access_and_flags, &handle);
  if (!*is_hit_out) return miss(thread, request, reg_out);
  *reg_out = handle.reg;
  return success();
}

// All that is no plain hit; it may still be one.
pinrail_status_t Pool::miss_entry(pinrail_thread_t* thread, uintptr_t base, uintptr_t end, uint64_t access_and_flags,
                                  pinrail_handle_t* handle_out) {
  return guarded([&]() -> Status {
    drain_if_due(thread);
    pinrail_registration_t* reg;
    const Status status = miss(thread, {{base, end}, access_and_flags}, &reg);
    if (status.ok()) *handle_out = {reg, generation_of(reg)};
    return status;
  });
}

Status Pool::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                  pinrail_handle_t* handle_out) {
  Span span = Span::of(addr, length);
  if (!round_out(&span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  drain_if_due(thread);
  if (hit(thread, span, access_and_flags, handle_out)) return success();
  pinrail_registration_t* reg;
  if (rcache_.ops->find_locked(rcache_.module, thread, span.base, span.length(),
                               static_cast<uint32_t>(access_and_flags), &reg) != PINRAIL_SUCCESS) {
    return gpu_ != nullptr ? gpu_->find(thread, addr, length, access_and_flags, handle_out)
                           : Status(PINRAIL_ERR_NOT_FOUND);
  }
  hits_.add(thread);
  *handle_out = {reg, generation_of(reg)};
  return success();
}

Status Pool::miss(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if (request.span.base == 0) return PINRAIL_ERR_BAD_PARAM;  // rounded out; before anything is evicted for it
  const size_t max_length = limits_of_registrar_.max_length;
  if (max_length != 0 && request.span.length() > max_length) return PINRAIL_ERR_NOT_SUPPORTED;
  drain_if_many(thread);
  // A thread that is inside its own registrar call would wait for itself: it gets one of its own (R5).
  if (request.has(PINRAIL_FLAG_CACHE_BYPASS) || thread->in_registrar != 0) {
    return register_own(thread, request, reg_out);
  }
  Pending own;
  *reg_out = nullptr;
  const Entered entered = enter(thread, request, &own, reg_out);
  if (entered == Entered::found && !is_what_was_asked_for(request, *reg_out)) {
    Status(deregister_entry(this, thread, {*reg_out, generation_of(*reg_out)})).ignore();
    return register_own(thread, request, reg_out);
  }
  if (entered == Entered::found) {
    hits_.add(thread);
    return success();
  }
  Status status = success();
  // Waiters and hooks look at `own`. The reference is nobody's if the caller does not get it.
  OnUnwind unwound([&] {
    leave(&own);
    if (*reg_out != nullptr) Status(deregister_entry(this, thread, {*reg_out, generation_of(*reg_out)})).ignore();
  });
  if (entered == Entered::needs_memory) status = rcache_.ops->prepare(rcache_.module, 1);
  if (status.ok()) status = register_indexed(thread, request, &own, reg_out);
  if (!status.ok()) leave(&own);
  drain_if_many(thread);  // also what the new one displaced
  unwound.disarm();
  return status;
}

// Of the caller alone, and entered nowhere.
Status Pool::register_own(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  Pending own;
  own.rights = request.rights();
  return register_uncached(thread, request, &own, reg_out);
}

Status Pool::register_uncached(pinrail_thread_t* thread, const Request& request, Pending* own,
                               pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg;
  own->is_uncached = true;
  const Status status = register_on_device(thread, request, own, PINRAIL_COUNTING_SHARED, &reg);
  if (!status.ok()) return status;
  state::set(reg, state::kDead, 1);
  *reg_out = reg;
  return success();
}

// What can become stale unseen is never in the index, not even while it is held.
Status Pool::register_uncovered(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_registration_t** reg_out) {
  rcache_.ops->cancel(rcache_.module);
  own->rights = request.rights();
  const Status status = register_uncached(thread, request, own, reg_out);
  if (!status.ok()) return status;
  uncovered_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  leave(own);
  return status;
}

// Announced in the index, and entered as pending; on success it is pending no more.
Status Pool::register_indexed(pinrail_thread_t* thread, const Request& request, Pending* own,
                              pinrail_registration_t** reg_out) {
  for (int tries = 0;; ++tries) {
    bool raced = false;
    const Status status = attempt(thread, request, own, reg_out, &raced);
    if (!raced) return status;
    races_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
    if (tries == kRetriesAfterRace) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    const Status prepared = rcache_.ops->prepare(rcache_.module, 0);
    if (!prepared.ok()) return prepared;
  }
}

// Once through the device and into the index; uses up the announcement.
Status Pool::attempt(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out,
                     bool* raced_out) {
  pinrail_registration_t* reg;
  const bool kept = is_kept(request.flags());
  if (settings_.leave_pinned && !is_covered(request.span)) return register_uncovered(thread, request, own, reg_out);
  const pinrail_counting_t counting = kept ? PINRAIL_COUNTING_THREADS : PINRAIL_COUNTING_SHARED;
  OnUnwind unwound([&] { rcache_.ops->cancel(rcache_.module); });
  const Status status = register_on_device(thread, request, own, counting, &reg);
  unwound.disarm();
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
  *reg_out = reg;
  return success();
}

}  // namespace pinrail::grdma
