// SPDX-License-Identifier: BSD-3-Clause
// Hook context: an event overtakes register calls that are under way. The caller holds no lock.
#include "components/mpool/grdma/grdma_pending.h"

namespace pinrail::grdma {

void PendingCalls::mark_raced_hook(const Span& span) {
  if (first_.load() == nullptr) return;
  Guard guard(mutex);
  for (Pending* other = first_.load(); other != nullptr; other = other->next) {
    if (other->span.overlaps(span)) other->raced = true;
  }
}

// seq_cst, as the load of first_ that follows. An exchange that may fail would be a barrier on x86 alone.
void PendingCalls::barrier_hook() { barriers_.fetch_add(1); }

}  // namespace pinrail::grdma
