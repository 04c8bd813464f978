// SPDX-License-Identifier: BSD-3-Clause
// Removes what a range covers. Hook context: nothing here allocates or frees. Callers hold the index lock in functions
// whose names end in _locked or _locked_hook.
#include <sched.h>

#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

// The index lock is held. Removes one registration from its tree. False if it is not in the index.
bool Index::remove_locked(Tree& tree, pinrail_registration_t* reg) {
  const Change change(this);
  if (!tree.remove(pool_, reg)) return false;
  --count_;
  return true;
}

// Works leaf by leaf; visits after each leaf.
bool Index::remove_overlapping_locked_hook(Tree& tree, const Span& span, bool contained_only,
                                           pinrail_visit_hook_t visit, void* arg) {
  const auto matches = [&](const pinrail_registration_t* reg) {
    return !contained_only || (span.contains(span_of(reg)) && !is_exempt(reg));
  };
  bool has_yielded = false;
  for (bool is_last = false; !is_last;) {
    pinrail_registration_t* regs[Leaf::kSlots];
    {
      // The change lasts until the registrations were visited. Otherwise another event could find the index clear and
      // return before they are dead.
      const Change change(this);
      const Tree::RemovedFromLeaf taken = tree.remove_from_leaf(pool_, span, matches, regs);
      if (taken.count == 0) break;
      is_last = taken.is_last;
      count_ -= taken.count;
      visit(arg, regs, taken.count);
    }
    if (!is_last && yield_locked_hook()) has_yielded = true;
  }
  return has_yielded;
}

// Called between two leaves of a large event or displacement, which may take milliseconds: a miss need not wait for all
// of it. A registration that is inserted meanwhile was requested after the event began: an older request is marked as
// raced and is not inserted.
bool Index::yield_locked_hook() {
  constexpr int kPatience = 100;
  if (!mutex_.is_awaited()) return false;
  mutex_.unlock();
  // An unlocked mutex goes to a running thread, which would be this one, and not to one that is still waking up.
  for (int i = 0; i < kPatience && mutex_.is_free(); ++i) sched_yield();
  mutex_.lock();
  return true;
}

// Most freed memory has no registrations, so the hook usually needs no lock.
bool Index::is_clear_hook(const Span& span) const {
  const uint64_t before = changes_.load(std::memory_order_acquire);
  const auto unchanged = [&] { return changes_.load(std::memory_order_acquire) == before; };
  if ((before & 1) != 0) return false;
  // acquire: pairs with the release store in class_of_locked().
  const uint32_t count = classes_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (trees_[i].search_overlap(span, unchanged) != SearchResult::absent) return false;
  }
  return unchanged();
}

// Hook or API context. Overtakes the calls under way, then removes each registration that overlaps the span and passes
// it to visit_hook, which marks it dead, with the index lock held. Takes no lock if nothing overlaps and no call is
// under way. The caller has passed a full barrier (vma_announcements/W2).
void Index::invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg) {
  if (announcements_.is_empty_hook() && is_clear_hook(span)) return;
  Guard guard(mutex_);
  announcements_.overtake_hook(span);
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) remove_overlapping_locked_hook(trees_[i], span, false, visit_hook, arg);
}

}  // namespace pinrail::vma
