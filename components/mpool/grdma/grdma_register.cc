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

// A persistent registration is given back with its last reference; a cached one stays, so it does not answer a request
// for a persistent one.
bool answers(const Request& request, const pinrail_registration_t* reg) {
  return !request.has(PINRAIL_FLAG_PERSISTENT) || (reg->flags & PINRAIL_FLAG_PERSISTENT) != 0;
}

}  // namespace

// An EXACT pool's index has no start table; a start table has only page-aligned starts; and a pool that keeps nothing
// has no registration that is counted per thread.
bool Pool::lends_start_table() const {
  return start_table_ != nullptr && settings_.leave_pinned && start_table::is_start(page_mask_ + 1);
}

// What the C face needs to answer hits itself; empty if it may not.
pinrail_shortcut_t Pool::shortcut() {
  if (!lends_start_table()) return {};
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
  const bool seen = pool->lends_start_table() && thread->index < HitCounts::kAlone &&
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

// For a pool of GPU memory, of a whole allocation: a hit or a miss.
Status Pool::register_gpu_range(pinrail_thread_t* thread, const Request& request, bool* is_hit_out,
                                pinrail_registration_t** reg_out) {
  pinrail_handle_t handle{};
  drain_if_due(thread);
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
    drain_if_due(thread);
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
  drain_if_due(thread);
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
  drain_if_many(thread);
  // A thread that is inside its own registrar call would wait for itself: it gets an uncached registration (R5).
  if (request.has(PINRAIL_FLAG_CACHE_BYPASS) || thread->in_registrar != 0) {
    return register_own(thread, request, reg_out);
  }
  Pending own;
  *reg_out = nullptr;
  const Entered entered = pending_.enter(thread, request, &own, reg_out);
  if (entered == Entered::found && !answers(request, *reg_out)) {
    Status(deregister_entry(this, thread, {*reg_out, generation_of(*reg_out)})).ignore();
    return register_own(thread, request, reg_out);
  }
  if (entered == Entered::found) {
    hits_.add(thread);
    return success();
  }
  Status status = success();
  // Waiting calls and hooks read `own`, so it leaves. A reference that the caller will not get is dropped.
  OnUnwind unwound([&] {
    pending_.leave(&own);
    if (*reg_out != nullptr) Status(deregister_entry(this, thread, {*reg_out, generation_of(*reg_out)})).ignore();
  });
  if (entered == Entered::needs_memory) status = rcache_.ops.prepare(rcache_.module, &own.announcement, 1);
  if (status.ok()) status = register_indexed(thread, request, &own, reg_out);
  if (!status.ok()) pending_.leave(&own);
  drain_if_many(thread);  // the insert may have displaced some
  unwound.disarm();
  return status;
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
  pinrail_registration_t* reg;
  own->is_uncached = true;
  const Status status = register_on_device(thread, request, own, PINRAIL_COUNTING_SHARED, &reg);
  if (!status.ok()) return status;
  state::set(reg, state::kDead, 1);
  *reg_out = reg;
  return success();
}

// Memory that can become stale without an event is never in the index, not even while it is held.
Status Pool::register_uncovered(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_registration_t** reg_out) {
  rcache_.ops.withdraw(rcache_.module, &own->announcement);
  own->rights = request.rights();
  const Status status = register_uncached(thread, request, own, reg_out);
  if (!status.ok()) return status;
  uncovered_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  pending_.leave(own);
  return status;
}

// The call is listed as pending and has announced its insert. On success it has left the list.
Status Pool::register_indexed(pinrail_thread_t* thread, const Request& request, Pending* own,
                              pinrail_registration_t** reg_out) {
  for (int tries = 0;; ++tries) {
    bool raced = false;
    const Status status = attempt(thread, request, own, reg_out, &raced);
    if (!raced) return status;
    races_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
    if (tries == kRetriesAfterRace) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    const Status prepared = rcache_.ops.prepare(rcache_.module, &own->announcement, 0);
    if (!prepared.ok()) return prepared;
  }
}

// Registers the range on the device and publishes it, once. The announcement is used up.
Status Pool::attempt(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out,
                     bool* raced_out) {
  pinrail_registration_t* reg;
  const bool kept = is_kept(request.flags());
  if (settings_.leave_pinned && !is_covered(request.span)) return register_uncovered(thread, request, own, reg_out);
  const pinrail_counting_t counting = kept ? PINRAIL_COUNTING_THREADS : PINRAIL_COUNTING_SHARED;
  OnUnwind unwound([&] { rcache_.ops.withdraw(rcache_.module, &own->announcement); });
  const Status status = register_on_device(thread, request, own, counting, &reg);
  unwound.disarm();
  if (!status.ok()) {
    rcache_.ops.withdraw(rcache_.module, &own->announcement);
    return status;
  }
  const Published published = publish(thread, own, reg);
  if (published == Published::raced) {
    *raced_out = true;
    in_flight_.begin_release();
    give_back(thread, reg, PINRAIL_REASON_INVALIDATED);
    return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  }
  *reg_out = reg;
  return success();
}

// Puts the registration into the index, with its maker's reference, unless an event overtook it (grdma/G6). Unless it
// raced, the call leaves the list of pending ones.
Published Pool::publish(pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg) {
  const uint64_t counting = state::load(reg) & state::kPerThread;
  Guard guard(pending_.mutex);
  assert_held(unindexed_.mutex, LockRank::pending);
  if (own->raced) {
    own->raced = false;  // for the next try
    rcache_.ops.withdraw(rcache_.module, &own->announcement);
    state::set(reg, counting | state::kDead);
    return Published::raced;
  }
  touch(reg, cache_->epoch());
  if (counting != 0) references::count_surely(thread, reg, 1);
  state::set(reg, counting | state::kIndexed, counting != 0 ? 0 : 1);
  const pinrail_status_t published =
      rcache_.ops.publish(rcache_.module, thread, &own->announcement, reg, displaced_hook, this);
  if (published == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) {
    // The index saw an event itself. It did not insert the registration, so this call has its only reference.
    if (counting != 0) references::count_surely(thread, reg, -1);
    state::set(reg, counting | state::kDead, counting != 0 ? 0 : -1);
    return Published::raced;
  }
  const bool is_in = published == PINRAIL_SUCCESS;
  if (!is_in) {
    if (counting == 0) unindexed_.link_uncached_locked_hook(reg);
    state::set(reg, counting | state::kDead);
    if (counting != 0) push_displaced_locked_hook(reg);
  }
  // Last: a hook that finds no pending call must find the index, and what is displaced, as they are now.
  pending_.leave_locked(own);
  return is_in ? Published::indexed : Published::alone;
}

}  // namespace pinrail::grdma
