// SPDX-License-Identifier: BSD-3-Clause
// Hook context: dead registrations go onto the gc list. Takes no lock; the caller may hold the index's lock and that
// of Unindexed.
#include "components/mpool/grdma/grdma_gc_list.h"

namespace pinrail::grdma {

void GcList::wake_thread_hook(pinrail_gc_when_t when) {
  if (member_ != nullptr) host_->pools->gc_wake_hook(host_, when);
}

void GcList::push_hook(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes, uint64_t count) {
  // relaxed: bounds (grdma_gc_list/D2), which change under the index lock; before they can be taken and counted off
  pushed_bytes_.store(pushed_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  pushed_count_.store(pushed_count_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  pinrail_registration_t* head = pushed_.load(std::memory_order_relaxed);
  do {
    area_of(last).gc_next = head;
    // seq_cst: as release it pairs with the acquire in take(); and with clear_due_below_limit().
  } while (!pushed_.compare_exchange_weak(head, first));
  note_growth_hook(head == nullptr);
}

// For a caller that does not hold the index lock.
void GcList::count_on_hook(uint64_t bytes, uint64_t count) {
  gone_bytes_.fetch_sub(bytes);                             // seq_cst: pairs with clear_due_below_limit()
  gone_count_.fetch_sub(count, std::memory_order_relaxed);  // relaxed: a bound (grdma_gc_list/D2)
}

void GcList::count_displaced_hook(uint64_t bytes, bool is_first) {
  count_on_hook(bytes, 1);
  note_growth_hook(is_first);
}

void GcList::note_growth_hook(bool is_first) {
  if (is_first) wake_thread_hook(PINRAIL_GC_SOON);
  if (bytes() > limit_bytes_ && !is_due_.load()) {
    is_due_.store(true, std::memory_order_relaxed);  // relaxed: a hint
    wake_thread_hook(PINRAIL_GC_NOW);
  }
}

}  // namespace pinrail::grdma
