// SPDX-License-Identifier: BSD-3-Clause
// Hook context: marks registrations as dead and puts them onto the gc list, and does no more. Also what an insert
// displaces. The interrupted thread may hold references; it holds none of the locks that are taken here (HookMutex).
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// Marks it as dead, so that no find returns it. True if the caller must put it onto a list; false if it was dead
// already, or if its last drop gives it back.
bool Pool::kill_hook(pinrail_registration_t* reg, pinrail_reason_t reason) {
  // Before the state word, so that the thread that deregisters it sees it. relaxed: ordered by that word.
  if (reason == PINRAIL_REASON_INVALIDATED) __atomic_store_n(&area_of(reg).reason, uintptr_t{reason}, __ATOMIC_RELAXED);
  uint64_t before;
  if (!kill(reg, &before)) return false;
  // relaxed: a statistic, which changes under the index lock
  if (reason == PINRAIL_REASON_INVALIDATED) {
    invalidations_.store(invalidations_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  return (before & state::kPerThread) != 0 || state::references(before) == 0;
}

// Kills them and pushes all onto the gc list at once, because other threads read the word of that list.
void Pool::kill_batch_hook(pinrail_registration_t* const* regs, size_t count, pinrail_reason_t reason) {
  pinrail_registration_t *first = nullptr, *last = nullptr;
  uint64_t bytes = 0, dead = 0;
  for (size_t i = 0; i < count; ++i) prefetch(regs[i]);
  for (size_t i = 0; i < count; ++i) {
    if (!kill_hook(regs[i], reason)) continue;
    if (first == nullptr) last = regs[i];
    area_of(regs[i]).gc_next = first;
    first = regs[i];
    bytes += first->length;
    ++dead;
  }
  if (first != nullptr) gc_list_.push_hook(first, last, bytes, dead);
}

// Links a dead one into the displaced list and counts it.
void Pool::push_displaced_locked_hook(pinrail_registration_t* reg) {
  gc_list_.count_displaced_hook(reg->length, unindexed_.push_displaced_locked_hook(reg));
}

// One that is counted in its word is linked before it is dead, because then its last drop may free it. Until then it
// can only be freed by a thread that removes it from the index first, and that waits for the index's lock, which is
// held here. If its last drop came just before, that has left it to this thread: then the gc list has it, because limbo
// is for those that are counted per thread.
void Pool::displace_locked_hook(pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) prefetch(regs[i]);
  for (size_t i = 0; i < count; ++i) {
    const bool is_per_thread = (state::load(regs[i]) & state::kPerThread) != 0;
    if (!is_per_thread) unindexed_.link_uncached_locked_hook(regs[i]);
    if (!kill_hook(regs[i], PINRAIL_REASON_RELEASED)) continue;
    if (is_per_thread) {
      push_displaced_locked_hook(regs[i]);
    } else {
      gc_list_.push_hook(regs[i], regs[i], regs[i]->length, 1);
    }
  }
}

// An insert has displaced them. The index calls it under its lock.
void Pool::displaced_hook(void* pool_pointer, pinrail_registration_t* const* regs, size_t count) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  Guard guard(pool->unindexed_.mutex);
  pool->displace_locked_hook(regs, count);
}

// For abandon_all(): they leave the index without an event.
void Pool::abandoned_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  static_cast<Pool*>(pool)->kill_batch_hook(regs, count, PINRAIL_REASON_RELEASED);
}

// The index calls it under its lock, with what an event removed.
void Pool::invalidated_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  static_cast<Pool*>(pool)->kill_batch_hook(regs, count, PINRAIL_REASON_INVALIDATED);
}

// grdma/G6. The caller has passed a full barrier.
void Pool::invalidate_range_hook(const Span& span) {
  rcache_.ops.invalidate_hook(rcache_.module, span.base, span.length(), invalidated_hook, this);
  if (unindexed_.may_hold_any_hook()) mark_unindexed_hook(span);
}

// Marks what may be held outside the index. Takes the lock of Unindexed.
void Pool::mark_unindexed_hook(const Span& span) {
  Guard guard(unindexed_.mutex);
  unindexed_.mark_invalidated_locked_hook(span, registered_.limbo_hook());
}

// For an event that a caller reports, of memory of any kind; it may have only been written down so far. seq_cst: a full
// barrier, on memory that no other thread waits for; volatile, so that no compiler leaves it out. An exchange that may
// fail would be one on x86 alone.
void Pool::invalidate_all_kinds_hook(const Span& span) {
  volatile std::atomic<uint32_t> barrier{0};
  barrier.fetch_add(1);
  invalidate_range_hook(span);
  if (gpu_ != nullptr) gpu_->ranges()->invalidate_range_hook(span);
}

// For an event that a monitor reports.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  static_cast<Pool*>(pool)->invalidate_range_hook(Span::of(base, length));
}

}  // namespace pinrail::grdma
