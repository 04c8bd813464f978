// SPDX-License-Identifier: BSD-3-Clause
// API context. Functions whose names end in _locked run under the lock (`mutex`), the others take it. No
// registrar is called. The calling thread may hold references.
#include "components/mpool/grdma/grdma_unindexed.h"

namespace pinrail::grdma {

void Unindexed::link_uncached(pinrail_registration_t* reg) {
  Guard guard(mutex);
  link_uncached_locked_hook(reg);
}

void Unindexed::unlink_uncached(pinrail_registration_t* reg) {
  if ((state::load(reg) & state::kPerThread) != 0) return;
  UncachedArea& area = uncached_area_of(reg);
  if (!area.is_uncached) return;
  area.is_uncached = false;
  Guard guard(mutex);
  if (area.next_uncached != nullptr) uncached_area_of(area.next_uncached).previous_uncached = area.previous_uncached;
  if (area.previous_uncached != nullptr) {
    uncached_area_of(area.previous_uncached).next_uncached = area.next_uncached;
  } else {
    uncached_.store(area.next_uncached);
  }
}

size_t Unindexed::first_displaced(pinrail_registration_t** regs_out, size_t most) {
  Guard guard(mutex);
  size_t count = 0;
  pinrail_registration_t* reg = displaced_.load();
  for (; reg != nullptr && count < most; reg = area_of(reg).gc_next) regs_out[count++] = reg;
  return count;
}

void Unindexed::unlink_displaced_locked(pinrail_registration_t* const* regs, size_t count) {
  pinrail_registration_t* before = displaced_.load();
  pinrail_registration_t* const rest = area_of(regs[count - 1]).gc_next;
  if (before == regs[0]) {
    displaced_.store(rest);
    return;
  }
  while (area_of(before).gc_next != regs[0]) before = area_of(before).gc_next;
  area_of(before).gc_next = rest;
}

void Unindexed::forget_displaced() {
  Guard guard(mutex);
  displaced_.store(nullptr);
}

void Unindexed::displaced_one_left_locked(bool is_limbo_empty) {
  if (displaced_.load() == nullptr && is_limbo_empty) may_hold_displaced_.store(false);
}

}  // namespace pinrail::grdma
