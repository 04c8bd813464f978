// SPDX-License-Identifier: BSD-3-Clause
// Hook context, under the lock: inserts displace registrations, and events reach those that the index does not
// have.
#include <algorithm>

#include "components/mpool/grdma/grdma_unindexed.h"

namespace pinrail::grdma {

// Also called while a registration is made.
void Unindexed::link_uncached_locked_hook(pinrail_registration_t* reg) {
  UncachedArea& area = uncached_area_of(reg);
  area.is_uncached = true;
  area.previous_uncached = nullptr;
  area.next_uncached = uncached_.load();
  if (area.next_uncached != nullptr) uncached_area_of(area.next_uncached).previous_uncached = reg;
  uncached_.store(reg);
}

bool Unindexed::push_displaced_locked_hook(pinrail_registration_t* reg) {
  pinrail_registration_t* const head = displaced_.load();
  area_of(reg).gc_next = head;
  displaced_.store(reg);
  const Span span = span_of(reg);
  const Span& known = displaced_span_;
  displaced_span_ =
      may_hold_displaced_.load() ? Span{std::min(known.base, span.base), std::max(known.end, span.end)} : span;
  may_hold_displaced_.store(true);
  return head == nullptr;
}

// Limbo has also some that were not displaced: those were marked when they died.
void Unindexed::mark_invalidated_locked_hook(const Span& span, const Round& limbo) {
  const auto mark = [&span](pinrail_registration_t* reg) {
    if (!span_of(reg).overlaps(span)) return;
    // relaxed: ordered by the lock
    __atomic_store_n(&area_of(reg).reason, PINRAIL_REASON_INVALIDATED, __ATOMIC_RELAXED);
  };
  pinrail_registration_t* reg = uncached_.load();
  for (; reg != nullptr; reg = uncached_area_of(reg).next_uncached) mark(reg);
  if (!may_hold_displaced_.load() || !displaced_span_.overlaps(span)) return;
  for (reg = displaced_.load(); reg != nullptr; reg = area_of(reg).gc_next) mark(reg);
  for (size_t i = 0; i < limbo.in_limbo; ++i) mark(limbo.limbo_at(i));
}

}  // namespace pinrail::grdma
