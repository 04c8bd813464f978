// SPDX-License-Identifier: BSD-3-Clause
// Hook context: what a range takes with it when it goes. Nothing here allocates or frees.
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

// Removes and visits what overlaps the span (contained_only: what lies in it and is not persistent), in batches, for
// the tree may not change while it is walked.
void Index::take_out(Tree& tree, const Span& span, bool contained_only, pinrail_visit_hook_t visit, void* arg) {
  pinrail_registration_t* batch[kBatch];
  size_t found;
  do {
    found = 0;
    tree.for_overlaps(span, [&](pinrail_registration_t* reg) {
      const bool stays =
          contained_only && (!span.contains(span_of(reg)) || (reg->flags & PINRAIL_FLAG_PERSISTENT) != 0);
      if (!stays) batch[found++] = reg;
      return found < kBatch;
    });
    for (size_t i = 0; i < found; ++i) {
      if (tree.remove(pool_, batch[i])) --count_;
      visit(arg, batch[i]);
    }
  } while (found == kBatch);
}

void Index::invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg) {
  Guard guard(mutex_);
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) take_out(trees_[i], span, false, visit_hook, arg);
}

}  // namespace pinrail::vma
