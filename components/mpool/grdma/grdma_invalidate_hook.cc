// SPDX-License-Identifier: BSD-3-Clause
// Hook context: dead, onto the gc list, stop.
#include <algorithm>

#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

void Pool::wake_gc_hook(pinrail_gc_when_t when) {
  if (gc_member_ != nullptr) host_->gc_wake_hook(host_, when);
}

// Nobody new may use it. False if it was dead already, and has somebody who cares for it, or if its last drop will give
// it back.
bool Pool::kill_hook(pinrail_registration_t* reg, pinrail_reason_t reason) {
  // Before the state word, so that whoever gives it back sees it. relaxed: ordered by that word.
  if (reason == PINRAIL_REASON_INVALIDATED) __atomic_store_n(&area_of(reg).reason, uintptr_t{reason}, __ATOMIC_RELAXED);
  uint64_t before;
  if (!kill(reg, &before)) return false;
  // relaxed: a figure
  if (reason == PINRAIL_REASON_INVALIDATED) invalidations_.fetch_add(1, std::memory_order_relaxed);
  return (before & state::kPerThread) != 0 || state::references(before) == 0;
}

// Dead, and onto the gc list: all of them with one push, for others read that word.
void Pool::die_hook(pinrail_registration_t* const* regs, size_t count, pinrail_reason_t reason) {
  pinrail_registration_t *first = nullptr, *last = nullptr;
  uint64_t bytes = 0, dead = 0;
  for (size_t i = 0; i < count; ++i) fetch(regs[i]);
  for (size_t i = 0; i < count; ++i) {
    if (!kill_hook(regs[i], reason)) continue;
    if (first == nullptr) last = regs[i];
    area_of(regs[i]).gc_next = first;
    first = regs[i];
    bytes += first->length;
    ++dead;
  }
  if (first != nullptr) push_dead_hook(first, last, bytes, dead);
}

void Pool::push_dead_hook(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes, uint64_t count) {
  pinrail_registration_t* head = gc_list_.load(std::memory_order_relaxed);
  do {
    area_of(last).gc_next = head;
    // release: pairs with the acquire in drain_once().
  } while (!gc_list_.compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
  count_dead_hook(bytes, count, head == nullptr);
}

// is_first: the list was empty.
void Pool::count_dead_hook(uint64_t bytes, uint64_t count, bool is_first) {
  // relaxed: a bound, not exact
  bytes += gc_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  gc_count_.fetch_add(count, std::memory_order_relaxed);  // as above
  if (is_first) wake_gc_hook(PINRAIL_GC_SOON);
  // relaxed: a hint
  if (bytes > settings_.gc_limit && !gc_due_.load(std::memory_order_relaxed)) {
    gc_due_.store(true, std::memory_order_relaxed);
    wake_gc_hook(PINRAIL_GC_NOW);
  }
}

void Pool::push_displaced_hook(pinrail_registration_t* reg) {
  pinrail_registration_t* const head = displaced_.load();
  area_of(reg).gc_next = head;
  displaced_.store(reg);
  const Span span = span_of(reg);
  const Span& known = displaced_span_;
  displaced_span_ = has_displaced_.load() ? Span{std::min(known.base, span.base), std::max(known.end, span.end)} : span;
  has_displaced_.store(true);
  count_dead_hook(reg->length, 1, head == nullptr);
}

// What is counted in its word is linked before it is dead, for then its last drop may end it; whoever ends it otherwise
// has the index remove it first, and that waits for the index's lock, which is held here.
void Pool::displace_hook(pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) fetch(regs[i]);
  for (size_t i = 0; i < count; ++i) {
    if ((state::load(regs[i]) & state::kPerThread) == 0) link_uncached_locked(regs[i]);
    if (kill_hook(regs[i], PINRAIL_REASON_RELEASED)) push_displaced_hook(regs[i]);
  }
}

// By an insert: publish() holds the lock.
void Pool::displaced_hook(void* pool_pointer, pinrail_registration_t* const* regs,
                          size_t count) NO_THREAD_SAFETY_ANALYSIS {
  static_cast<Pool*>(pool_pointer)->displace_hook(regs, count);
}

void Pool::abandoned_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  static_cast<Pool*>(pool)->die_hook(regs, count, PINRAIL_REASON_RELEASED);
}

void Pool::invalidated_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  static_cast<Pool*>(pool)->die_hook(regs, count, PINRAIL_REASON_INVALIDATED);
}

// First those under way are marked, then the index is searched, then what may be held outside of it is marked:
// publish() checks the mark and inserts under the same lock, and what an insert displaces is linked before the index
// loses it, so that each registration is caught by one of them. The caller has come through a full barrier.
void Pool::invalidate_range_hook(const Span& span) {
  if (pending_.load() != nullptr) {
    Guard guard(pending_mutex_);
    for (Pending* other = pending_.load(); other != nullptr; other = other->next) {
      if (other->span.overlaps(span)) other->raced = true;
    }
  }
  rcache_.ops->invalidate_hook(rcache_.module, span.base, span.length(), invalidated_hook, this);
  if (uncached_.load() != nullptr || has_displaced_.load()) mark_unindexed_hook(span);
}

// grdma/G6. In limbo are also some that were not displaced: they were marked when they died.
void Pool::mark_unindexed_hook(const Span& span) {
  const auto mark = [&span](pinrail_registration_t* reg) {
    if (!span_of(reg).overlaps(span)) return;
    // relaxed: ordered by the lock
    __atomic_store_n(&area_of(reg).reason, PINRAIL_REASON_INVALIDATED, __ATOMIC_RELAXED);
  };
  Guard guard(pending_mutex_);
  pinrail_registration_t* reg = uncached_.load();
  for (; reg != nullptr; reg = uncached_area_of(reg).next_uncached) mark(reg);
  if (!has_displaced_.load() || !displaced_span_.overlaps(span)) return;
  for (reg = displaced_.load(); reg != nullptr; reg = area_of(reg).gc_next) mark(reg);
  for (reg = limbo_.first; reg != nullptr; reg = area_of(reg).next) mark(reg);
}

void Pool::invalidate_all_kinds_hook(const Span& span) {
  // The barrier for a caller who only wrote down that the memory is free. seq_cst, as the load of pending_ that
  // follows; an exchange that may fail would be none but on x86.
  told_.fetch_add(1);
  invalidate_range_hook(span);
  if (gpu_ != nullptr) gpu_->ranges()->invalidate_range_hook(span);
}

void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  static_cast<Pool*>(pool)->invalidate_range_hook(Span::of(base, length));
}

}  // namespace pinrail::grdma
