// SPDX-License-Identifier: BSD-3-Clause
// grdma_unindexed.h - the registrations of one pool that may be held although the index does not have them: an event
// must reach these, too, so that the registrar learns that the memory is gone (R12).
//
// Owns     two lists. Not the registrations.
// Threads  the lists change under `mutex`, "unindexed" in lock_rank.h. A hook may find both empty without it.
// Hook     what ends in _hook, alone.
//
// grdma_unindexed/U1  The uncached list holds those that are counted in their state words and were never indexed, or
//     were displaced by an insert. A hook that finds the list empty without the lock comes before the next one is
//     linked and its register call reaches the device, or has found it in the index.
// grdma_unindexed/U2  The displaced list holds those that are counted per thread and were displaced, or were refused by
//     the index, until they were summed. If the sum finds one held, it goes into limbo (grdma_registered.h) in the same
//     step, and stays in reach of events there.
// grdma_unindexed/U3  While the displaced list or limbo may hold a displaced one, may_hold_displaced_ is set and
//     displaced_span_ covers it. It is set before the index loses the registration, and hooks read it after they have
//     searched the index.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_UNINDEXED_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_UNINDEXED_H

#include <atomic>

#include "base/core/span.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_area.h"

namespace pinrail::grdma {

class Unindexed {
 public:
  explicit Unindexed(HookLocks locks) : mutex(LockRank::unindexed, locks) {}

  void link_uncached(pinrail_registration_t* reg) EXCLUDES(mutex);
  void link_uncached_locked_hook(pinrail_registration_t* reg) REQUIRES(mutex);
  // It may be linked or not. Called only by the thread that deregisters the registration.
  void unlink_uncached(pinrail_registration_t* reg) EXCLUDES(mutex);

  // True if the list was empty.
  bool push_displaced_locked_hook(pinrail_registration_t* reg) REQUIRES(mutex);
  // relaxed: a hint.
  bool has_displaced() const { return displaced_.load(std::memory_order_relaxed) != nullptr; }
  // The first of the list, at most so many; they stay listed.
  size_t first_displaced(pinrail_registration_t** regs_out, size_t most) EXCLUDES(mutex);
  // The registrations are those of first_displaced(), which only one thread at a time calls. Others may have been
  // pushed before them since.
  void unlink_displaced_locked(pinrail_registration_t* const* regs, size_t count) REQUIRES(mutex);
  // For a pool that is being destroyed or restarted: Registered has them all.
  void forget_displaced() EXCLUDES(mutex);
  // Called when one has left the displaced list or limbo: if both are empty, events skip them (grdma_unindexed/U3).
  void displaced_one_left_locked(bool is_limbo_empty) REQUIRES(mutex);

  bool may_hold_any_hook() const { return uncached_.load() != nullptr || may_hold_displaced_.load(); }
  // Marks what overlaps on both lists and in limbo as invalidated.
  void mark_invalidated_locked_hook(const Span& span, const Round& limbo) REQUIRES(mutex);

  HookMutex mutex;

 private:
  // seq_cst where no other order is named.
  std::atomic<pinrail_registration_t*> uncached_{nullptr};
  std::atomic<pinrail_registration_t*> displaced_{nullptr};  // linked by gc_next
  std::atomic<bool> may_hold_displaced_{false};
  Span displaced_span_ GUARDED_BY(mutex);
};

}  // namespace pinrail::grdma

#endif
