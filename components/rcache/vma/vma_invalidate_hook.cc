// SPDX-License-Identifier: BSD-3-Clause
// Removes what a range covers. Hook context: nothing here allocates or frees. Callers hold the index lock in functions
// whose names end in _locked or _locked_hook.
#include <sched.h>

#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

// The index lock is held. Removes one registration from its tree and the start table. False if it is not in the index.
bool Index::remove_locked(Tree& tree, pinrail_registration_t* reg) {
  {
    const Change change(this);
    if (!tree.remove(pool_, reg)) return false;
  }
  start_table_.remove(reg);
  --count_;
  return true;
}

// The index lock is held. Removes what overlaps the span from one leaf and returns how many it removed.
template <typename Matches>
size_t Index::remove_from_leaf_locked_hook(Tree& tree, const Span& span, Matches&& matches,
                                           pinrail_registration_t** regs_out, bool* is_last_out, Leaf* found) {
  const Tree::RemovedFromLeaf taken = tree.remove_from_leaf(pool_, span, matches, regs_out, found);
  for (size_t i = 0; i < taken.count; ++i) start_table_.remove(regs_out[i]);
  count_ -= taken.count;
  *is_last_out = taken.is_last;
  return taken.count;
}

// Works leaf by leaf; visits after each leaf. found: as Tree::remove_from_leaf() has it.
void Index::remove_overlapping_locked_hook(Tree& tree, const Span& span, bool contained_only,
                                           pinrail_visit_hook_t visit, void* arg, Leaf* found) {
  const auto matches = [&](const pinrail_registration_t* reg) {
    return !contained_only || (span.contains(span_of(reg)) && !is_exempt(reg));
  };
  for (bool is_last = false; !is_last;) {
    pinrail_registration_t* regs[Leaf::kSlots];
    {
      // The change lasts until the registrations were visited. Otherwise another event could find the index clear and
      // return before they are dead.
      const Change change(this);
      const size_t count = remove_from_leaf_locked_hook(tree, span, matches, regs, &is_last, found);
      found = nullptr;
      if (count == 0) return;
      visit(arg, regs, count);
    }
    if (!contained_only && !is_last) yield_locked_hook();
  }
}

// Called between two leaves of a large event, which may take milliseconds: a miss need not wait for all of it. A
// registration that is inserted meanwhile was requested after the event began: an older request is marked as raced and
// is not inserted.
void Index::yield_locked_hook() {
  constexpr int kPatience = 100;
  if (!mutex_.is_awaited()) return;
  mutex_.unlock();
  // An unlocked mutex goes to a running thread, which would be this one, and not to one that is still waking up.
  for (int i = 0; i < kPatience && mutex_.is_free(); ++i) sched_yield();
  mutex_.lock();
}

// Most freed memory has no registrations, so the hook usually needs no lock.
bool Index::is_clear_hook(const Span& span, Finding* finding_out) const {
  const uint64_t before = changes_.load(std::memory_order_acquire);
  const auto unchanged = [&] { return changes_.load(std::memory_order_acquire) == before; };
  if ((before & 1) != 0) return false;
  // acquire: pairs with the release store in class_of_locked().
  const uint32_t count = classes_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Leaf* leaf = nullptr;
    if (trees_[i].search_overlap(span, unchanged, &leaf) == SearchResult::absent) continue;
    *finding_out = {before, i, leaf};
    return false;
  }
  return unchanged();
}

// Hook or API context. Overtakes the calls under way, then removes each registration that overlaps the span and passes
// it to visit_hook, which marks it dead, with the index lock held. Takes no lock if nothing overlaps and no call is
// under way. The caller has passed a full barrier (vma_announcements/W2).
void Index::invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg) {
  Finding finding{};
  if (!announcements_.is_empty_hook() || !is_clear_hook(span, &finding)) {
    remove_overlapping_hook(span, visit_hook, arg, finding);
  }
}

// Hook or API context. Takes the index lock. finding: what the search without it found; used if nothing has changed
// since.
__attribute__((noinline)) void Index::remove_overlapping_hook(const Span& span, pinrail_visit_hook_t visit_hook,
                                                              void* arg, const Finding& finding) {
  Guard guard(mutex_);
  announcements_.overtake_hook(span);
  // relaxed, both: the lock is held
  const bool is_true = finding.leaf != nullptr && changes_.load(std::memory_order_relaxed) == finding.changes;
  const uint32_t count = classes_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    Leaf* const found = is_true && finding.tree == i ? const_cast<Leaf*>(finding.leaf) : nullptr;
    remove_overlapping_locked_hook(trees_[i], span, false, visit_hook, arg, found);
  }
}

}  // namespace pinrail::vma
