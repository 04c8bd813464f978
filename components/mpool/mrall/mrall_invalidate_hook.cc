// SPDX-License-Identifier: BSD-3-Clause
// Hook context: hides what an event touches, and queues it for the maker. The interrupted thread may hold references;
// it holds none of the locks that are taken here (HookMutex).
#include "base/sync/assert_held.h"
#include "components/mpool/mrall/mrall.h"

namespace pinrail::mrall {

// Marks it as dead. Without references the maker gives it back, otherwise its last drop does (engine/P1).
void Pool::kill_hook(pinrail_registration_t* reg) {
  const size_t length = reg->length;  // if it is held, another thread may end it as soon as it is dead
  dead_bytes_.fetch_add(length, std::memory_order_relaxed);  // relaxed: a statistic
  mpool::mark_invalidated_hook(reg);
  const Killed killed = kill(reg);
  if (killed == Killed::no) dead_bytes_.fetch_sub(length, std::memory_order_relaxed);
  if (killed == Killed::owned) gc_list.push(reg, reg, length);
}

// The index calls it under its lock; the caller holds the lock of the work. What remains of their ranges is registered
// again, so all of it is queued.
void Pool::invalidated_hook(void* pool_pointer, pinrail_registration_t* const* regs, size_t count) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  assert_held(pool->work_.mutex, LockRank::pending);
  for (size_t i = 0; i < count; ++i) {
    pool->work_.touch_locked_hook(span_of(regs[i]));
    pool->kill_hook(regs[i]);
    mpool::count_one_hook(&pool->invalidations_);
  }
}

// An insert has made them superfluous.
void Pool::displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) static_cast<Pool*>(pool)->kill_hook(regs[i]);
}

// mrall/A2. Monitors report what is new in the same way as what goes away: either way the maker looks at the range, in
// whole pages, because it registers whole pages.
void Pool::invalidate_range_hook(const Span& span) {
  Span pages = span;
  if (!round_out(&pages, page_mask_ + 1)) pages.base &= ~page_mask_;
  {
    Guard guard(work_.mutex);
    rcache_.ops.invalidate_hook(rcache_.module, span.base, span.length(), invalidated_hook, this);
    work_.touch_locked_hook(pages);
  }
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
}

// For an event that a monitor reports.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  static_cast<Pool*>(pool)->invalidate_range_hook(Span::of(base, length));
}

}  // namespace pinrail::mrall
