// SPDX-License-Identifier: BSD-3-Clause
// Hook context: dead registrations go onto the gc list. Takes no lock; the caller may hold the index's lock and that
// of Unindexed.
#include "components/mpool/grdma/grdma_gc_list.h"

namespace pinrail::grdma {

void GcList::wake_thread_hook(pinrail_gc_when_t when) {
  if (member_ != nullptr) host_->pools->gc_wake_hook(host_, when);
}

void GcList::push_hook(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes, uint64_t count) {
  pinrail_registration_t* head = pushed_.load(std::memory_order_relaxed);
  do {
    area_of(last).gc_next = head;
    // release: pairs with the acquire in take().
  } while (!pushed_.compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
  count_hook(bytes, count, head == nullptr);
}

void GcList::count_hook(uint64_t bytes, uint64_t count, bool is_first) {
  // relaxed: a bound (grdma_gc_list/D2)
  bytes += bytes_.fetch_add(bytes, std::memory_order_relaxed);
  count_.fetch_add(count, std::memory_order_relaxed);  // as above
  if (is_first) wake_thread_hook(PINRAIL_GC_SOON);
  // relaxed: a hint
  if (bytes > limit_bytes_ && !is_due_.load(std::memory_order_relaxed)) {
    is_due_.store(true, std::memory_order_relaxed);
    wake_thread_hook(PINRAIL_GC_NOW);
  }
}

}  // namespace pinrail::grdma
