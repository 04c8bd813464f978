// SPDX-License-Identifier: BSD-3-Clause
// API context. No registrar is called. The calling thread may hold references.
#include "components/mpool/grdma/grdma_gc_list.h"

namespace pinrail::grdma {

pinrail_registration_t* GcList::take() {
  pinrail_registration_t* chain;
  {
    Guard guard(mutex);
    chain = rest_.load(std::memory_order_relaxed);  // relaxed: it changes under the lock alone
    rest_.store(nullptr, std::memory_order_relaxed);
  }
  // acquire: pairs with the release in push_hook().
  return chain != nullptr ? chain : pushed_.exchange(nullptr, std::memory_order_acquire);
}

void GcList::put_back(pinrail_registration_t* chain) {
  Guard guard(mutex);
  pinrail_registration_t* other = rest_.load(std::memory_order_relaxed);  // relaxed: under the lock
  rest_.store(chain, std::memory_order_relaxed);
  wake_thread_hook(PINRAIL_GC_SOON);  // it may have come and gone while this thread had them
  if (other == nullptr) return;
  while (area_of(chain).gc_next != nullptr) chain = area_of(chain).gc_next;  // another thread drained, too: rare
  area_of(chain).gc_next = other;
}

void GcList::put_batch_back(pinrail_registration_t* const* regs, size_t count) {
  if (count == 0) return;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    area_of(regs[i]).gc_next = i + 1 < count ? regs[i + 1] : nullptr;
    bytes += regs[i]->length;
  }
  count_on_hook(bytes, count);
  put_back(regs[0]);
}

void GcList::count_off(uint64_t bytes, uint64_t count) {
  // release: pairs with the acquire in bytes() and count().
  gone_bytes_.fetch_add(bytes, std::memory_order_release);
  gone_count_.fetch_add(count, std::memory_order_release);
}

// An event counts, pushes, and then looks at is_due_; this clears is_due_, looks at what is pushed, and then at the
// count. All four are seq_cst, so at least one of the two sees the other.
bool GcList::clear_due_below_limit() {
  if (bytes() > limit_bytes_) return false;
  is_due_.store(false);
  (void)pushed_.load();
  if (bytes() <= limit_bytes_) return true;
  is_due_.store(true);
  return false;
}

void GcList::forget_locked() {
  // relaxed: no other thread is in a call, and hooks have stopped pushing.
  rest_.store(nullptr, std::memory_order_relaxed);
  pushed_.store(nullptr, std::memory_order_relaxed);
  for (std::atomic<uint64_t>* each : {&pushed_bytes_, &pushed_count_, &gone_bytes_, &gone_count_}) {
    each->store(0, std::memory_order_relaxed);
  }
  is_due_.store(false, std::memory_order_relaxed);
}

}  // namespace pinrail::grdma
