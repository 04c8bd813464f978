// SPDX-License-Identifier: BSD-3-Clause
// The way in: a hit, or a miss -> registrar -> index. API context. The caller holds no lock, because a miss calls the
// registrar. The calling thread may hold references, and takes one more by each successful call.
#include "base/core/on_unwind.h"
#include "base/hit/start_table.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {
namespace {

// R13: a range that an event hits while it is being registered is tried again this often.
constexpr int kRetriesAfterRace = 3;

}  // namespace

// What the C face needs to answer hits itself; empty if it may not.
pinrail_shortcut_t Pool::shortcut() {
  if (!lends_start_table_) return {};
  return {start_table_, page_mask_, hits_.lines(), HitCounts::kAlone, nullptr};
}

// Takes a reference of an indexed registration that answers, without a lock. False: the index did not find one, though
// it may have one that is just being moved. starts: seen, if the start table need not be searched again.
inline bool Pool::hit(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out, StartTable starts) {
  auto* const find = starts == StartTable::seen ? rcache_shortcut_->find_without_start_table : rcache_.ops.find;
  pinrail_registration_t* reg =
      find(rcache_.module, thread, span.base, span.length(), static_cast<uint32_t>(access_and_flags));
  if (reg == nullptr) return false;
  hits_.add(thread);
  *handle_out = {reg, generation_of(reg)};
  return true;
}

// For what the C face did not answer by the shortcut. It has checked that addr + length does not wrap.
pinrail_status_t Pool::register_entry(void* pool_pointer, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                      uint64_t access_and_flags, pinrail_handle_t* handle_out) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  // Such requests are not answered by what is cached.
  constexpr uint64_t kNoHit = uint64_t{PINRAIL_FLAG_CACHE_BYPASS | PINRAIL_FLAG_PERSISTENT}
                              << PINRAIL_ACCESS_FLAGS_SHIFT;
  Span span = Span::of(addr, length);
  if (!round_out(&span, pool->page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  // relaxed: a hint; the gc list itself is taken with an acquire.
  const bool usual = !pool->gc_due_.load(std::memory_order_relaxed) && (access_and_flags & kNoHit) == 0;
  // The C face has searched the start table before it calls this.
  const bool seen = pool->lends_start_table_ && thread->index < HitCounts::kAlone &&
                    access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT == 0;
  if (usual && pool->hit(thread, span, access_and_flags, handle_out, seen ? StartTable::seen : StartTable::unseen))
    return PINRAIL_SUCCESS;
  if (pool->gpu_ != nullptr) return pool->gpu_entry(thread, addr, length, access_and_flags, handle_out);
  return pool->miss_entry(thread, span.base, span.end, access_and_flags, handle_out);
}

// There was no hit among host memory; it may be GPU memory.
pinrail_status_t Pool::gpu_entry(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                                 pinrail_handle_t* handle_out) {
  const pinrail_status_t status =
      guarded([&] { return gpu_->register_mem(thread, addr, length, access_and_flags, handle_out); });
  if (status != PINRAIL_ERR_NOT_FOUND) return status;
  Span span = Span::of(addr, length);
  if (!round_out(&span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  return miss_entry(thread, span.base, span.end, access_and_flags, handle_out);
}

// A registration of the caller's own, or a persistent one.
Status Pool::register_with(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                           const pinrail_register_options_t& options, pinrail_handle_t* handle_out) {
  Span rounded = span;
  if (!round_out(&rounded, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  const uint64_t before = span.base - rounded.base;
  const bool is_dmabuf = options.dmabuf_fd >= 0;
  if (is_dmabuf && options.dmabuf_offset < before) return PINRAIL_ERR_BAD_PARAM;
  if (options.iova != 0 && options.iova <= before) return PINRAIL_ERR_BAD_PARAM;
  const Extra extra = {options.dmabuf_fd, is_dmabuf ? options.dmabuf_offset - before : 0,
                       options.iova == 0 ? 0 : options.iova - before, options.argument, options.user_value};
  gc_.drain_if_due(thread);
  pinrail_registration_t* reg;
  const Status status = miss(thread, {rounded, access_and_flags, 0, &extra}, &reg);
  if (status.ok()) *handle_out = {reg, generation_of(reg)};
  return status;
}

// For a pool of GPU memory, of a whole allocation: a hit or a miss.
Status Pool::register_gpu_range(pinrail_thread_t* thread, const Request& request, bool* is_hit_out,
                                pinrail_registration_t** reg_out) {
  pinrail_handle_t handle{};
  gc_.drain_if_due(thread);
  *is_hit_out = (request.flags() & (PINRAIL_FLAG_CACHE_BYPASS | PINRAIL_FLAG_PERSISTENT)) == 0 &&
                hit(thread, request.span, request.access_and_flags, &handle);
  if (!*is_hit_out) return miss(thread, request, reg_out);
  *reg_out = handle.reg;
  return success();
}

// What register_entry() did not answer; another thread may have registered it since.
pinrail_status_t Pool::miss_entry(pinrail_thread_t* thread, uintptr_t base, uintptr_t end, uint64_t access_and_flags,
                                  pinrail_handle_t* handle_out) {
  return guarded([&]() -> Status {
    gc_.drain_if_due(thread);
    pinrail_registration_t* reg;
    const Status status = miss(thread, {{base, end}, access_and_flags}, &reg);
    if (status.ok()) *handle_out = {reg, generation_of(reg)};
    return status;
  });
}

// A hit, or NOT_FOUND; the registrar is not called for it, but the gc list may be drained. The search without a lock is
// repeated under the index's lock, so that the answer is sure.
Status Pool::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                  pinrail_handle_t* handle_out) {
  Span span = Span::of(addr, length);
  if (!round_out(&span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  gc_.drain_if_due(thread);
  if (hit(thread, span, access_and_flags, handle_out)) return success();
  pinrail_registration_t* reg;
  if (rcache_.ops.find_under_lock(rcache_.module, thread, span.base, span.length(),
                                  static_cast<uint32_t>(access_and_flags), &reg) != PINRAIL_SUCCESS) {
    return gpu_ != nullptr ? gpu_->find(thread, addr, length, access_and_flags, handle_out)
                           : Status(PINRAIL_ERR_NOT_FOUND);
  }
  hits_.add(thread);
  *handle_out = {reg, generation_of(reg)};
  return success();
}

// Registers the range, unless another thread has registered it by now. The outcome is a reference.
Status Pool::miss(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if (request.span.base == 0) return PINRAIL_ERR_BAD_PARAM;  // rounded out; before anything is evicted for it
  const size_t max_length = limits_of_registrar_.max_length;
  if (max_length != 0 && request.span.length() > max_length) return PINRAIL_ERR_NOT_SUPPORTED;
  gc_.drain_if_many(thread);
  if (request.has(PINRAIL_FLAG_CACHE_BYPASS)) return register_own(thread, request, reg_out);
  if (thread->in_registrar != 0) return register_inside_registrar(thread, request, reg_out);
  Pending own;
  *reg_out = nullptr;
  Status status = pending_.announce(thread, request, &own, reg_out);
  if (status.ok()) hits_.add(thread);
  if (!own.is_announced) return status;
  // Waiting calls and hooks read `own`, so it is withdrawn. A reference that the caller will not get is dropped.
  OnUnwind unwound([&] {
    pending_.withdraw(&own);
    if (*reg_out != nullptr) Status(deregister_entry(this, thread, {*reg_out, generation_of(*reg_out)})).ignore();
  });
  if (status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) status = rcache_.ops.prepare(rcache_.module, &own.announcement);
  if (status.ok() || status.is(PINRAIL_ERR_NOT_FOUND)) status = register_indexed(thread, request, &own, reg_out);
  pending_.withdraw(&own);
  if (unindexed_.has_displaced()) gc_.drain_if_many(thread);  // the insert may have displaced some
  unwound.disarm();
  return status;
}

// A thread that is inside its own registrar call would wait for itself: it gets an uncached registration (R5), unless
// one is cached. The search without the lock leaves out what is claimed, and all while gc_limit is exceeded.
Status Pool::register_inside_registrar(pinrail_thread_t* thread, const Request& request,
                                       pinrail_registration_t** reg_out) {
  const bool may_hit = !request.has(PINRAIL_FLAG_PERSISTENT) && request.extra == nullptr;
  if (may_hit && rcache_.ops.find_under_lock(rcache_.module, thread, request.span.base, request.span.length(),
                                             request.access(), reg_out) == PINRAIL_SUCCESS) {
    hits_.add(thread);
    return success();
  }
  return register_own(thread, request, reg_out);
}

// For the caller alone: it is not in the index, and no call waits for it.
Status Pool::register_own(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  Pending own;
  own.rights = request.rights();
  return register_uncached(thread, request, &own, reg_out);
}

// A registration that is born dead, counted in its state word: its last drop gives it back.
Status Pool::register_uncached(pinrail_thread_t* thread, const Request& request, Pending* own,
                               pinrail_registration_t** reg_out) {
  own->is_uncached = true;
  const Status status = register_on_device(thread, request, own, PINRAIL_COUNTING_SHARED);
  if (!status.ok()) return status;
  *reg_out = own->admission.reg;
  state::set(*reg_out, state::kDead, 1);
  return success();
}

// Memory that can become stale without an event is never in the index, not even while it is held.
Status Pool::register_uncovered(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_registration_t** reg_out) {
  pending_.withdraw(own);
  own->rights = request.rights();
  const Status status = register_uncached(thread, request, own, reg_out);
  if (status.ok()) uncovered_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  return status;
}

// The call is announced. Its announcement has ended on success, and lasts after an error.
Status Pool::register_indexed(pinrail_thread_t* thread, const Request& request, Pending* own,
                              pinrail_registration_t** reg_out) {
  for (int tries = 0;; ++tries) {
    if (settings_.leave_pinned && !is_covered(request.span)) return register_uncovered(thread, request, own, reg_out);
    const bool kept = is_kept(request.flags());
    const Status status =
        register_on_device(thread, request, own, kept ? PINRAIL_COUNTING_THREADS : PINRAIL_COUNTING_SHARED);
    if (!status.ok()) return status;
    if (publish(thread, own)) {
      *reg_out = own->admission.reg;
      return success();
    }
    deregistrar_.give_back_one(thread, own->admission.reg, PINRAIL_REASON_INVALIDATED);
    races_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
    if (tries == kRetriesAfterRace) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  }
}

// Puts the registration into the index, with its maker's reference, unless an event overtook it (grdma/G6): then it is
// dead, and false is returned.
bool Pool::publish(pinrail_thread_t* thread, Pending* own) {
  pinrail_registration_t* const reg = own->admission.reg;
  const uint64_t counting = state::load(reg) & state::kPerThread;
  touch(reg, cache_->epoch());
  if (counting != 0) references::count_surely(thread, reg, 1);
  state::set_own(reg, counting | state::kIndexed, counting != 0 ? 0 : 1);
  const auto try_it = [&] {
    if (own->leaving == nullptr) {
      return rcache_.ops.publish(rcache_.module, thread, &own->announcement, reg, displaced_hook, this);
    }
    const pinrail_status_t status = rcache_shortcut_->publish_instead_of(rcache_.module, thread, &own->announcement,
                                                                         reg, own->leaving, displaced_hook, this);
    free_leaving(own);
    return status;
  };
  pinrail_status_t published = try_it();
  if (published == PINRAIL_ERR_OUT_OF_RESOURCE &&
      rcache_.ops.prepare(rcache_.module, &own->announcement) == PINRAIL_SUCCESS) {
    published = try_it();  // other calls have used up the memory that there was before
  }
  if (published == PINRAIL_SUCCESS) {
    pending_.end(own);
    return true;
  }
  if (published == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) {
    // Dead first: the evictor, which may have claimed it, must not find it idle.
    state::set(reg, counting | state::kDead, counting != 0 ? 0 : -1);
    if (counting != 0) references::count_surely(thread, reg, -1);
    return false;
  }
  stay_alone(own, reg, counting);
  return true;
}

// The index did not take it. It is in reach of events outside the index before its announcement ends.
void Pool::stay_alone(Pending* own, pinrail_registration_t* reg, uint64_t counting) {
  {
    Guard guard(unindexed_.mutex);
    if (counting == 0) unindexed_.link_uncached_locked_hook(reg);
    state::set(reg, counting | state::kDead);
    if (counting != 0) push_displaced_locked_hook(reg);
  }
  // relaxed: this thread holds it, so it is not deregistered before.
  if (pending_.withdraw(own)) __atomic_store_n(&area_of(reg).reason, PINRAIL_REASON_INVALIDATED, __ATOMIC_RELAXED);
}

}  // namespace pinrail::grdma
