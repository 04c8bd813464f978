// SPDX-License-Identifier: BSD-3-Clause
// The writers' side of the ranges behind slots. API context. Functions whose names end in _locked run under mutex_;
// put(), clear(), keep() and take_kept() take it.
#include "components/mpool/gpusm/exports.h"

#include <algorithm>
#include <new>
#include <utility>

namespace pinrail::gpusm {

// Allocates arrays for `count` slots. OUT_OF_RESOURCE: no memory.
Status Exports::create(uint32_t count) {
  uint64_t chains = 1;
  while (chains < count) chains *= 2;
  ranges_.reset(new (std::nothrow) Range[count]);
  chains_.reset(new (std::nothrow) std::atomic<uint32_t>[chains]);
  if (ranges_ == nullptr || chains_ == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  for (uint64_t i = 0; i < chains; ++i)
    chains_[i].store(kNone, std::memory_order_relaxed);  // relaxed: no search runs yet
  chain_mask_ = chains - 1;
  return success();
}

// Allocates what the kept slots need. OUT_OF_RESOURCE: no memory.
Status Exports::create_kept(uint32_t count) {
  kept_slots_.reset(new (std::nothrow) Kept[count]);
  return kept_slots_ != nullptr ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
}

// Link and unlink the slot's range in its chain; the caller makes version_ odd meanwhile.
void Exports::link_locked(uint32_t slot, unsigned shift) {
  std::atomic<uint32_t>& first = chain_hook(shift, ranges_[slot].base.load() >> shift);
  ranges_[slot].next.store(first.load());
  first.store(slot);
  if (in_class_[shift]++ == 0) classes_.fetch_or(uint64_t{1} << shift);
}

void Exports::unlink_locked(uint32_t slot, unsigned shift) {
  std::atomic<uint32_t>* at = &chain_hook(shift, ranges_[slot].base.load() >> shift);
  while (at->load() != slot) at = &ranges_[at->load()].next;
  at->store(ranges_[slot].next.load());
  if (--in_class_[shift] == 0) classes_.fetch_and(~(uint64_t{1} << shift));
}

// The range is linked before the driver is asked again (gpusm_component/O2). API context; takes mutex_.
void Exports::put(uint32_t slot, uintptr_t base, size_t length) {
  Guard guard(mutex_);
  ranges_[slot].base.store(base);
  ranges_[slot].end.store(base + length);
  used_.store(std::max(used_.load(), slot + 1));
  version_.fetch_add(1);
  link_locked(slot, class_of(length));
  version_.fetch_add(1);
  lowest_.store(std::min(lowest_.load(), base));
  highest_.store(std::max(highest_.load(), base + length));
}

// Removes the slot's range. API context; takes mutex_.
void Exports::clear(uint32_t slot) {
  Guard guard(mutex_);
  Range& range = ranges_[slot];
  const size_t length = range.end.load() - range.base.load();
  version_.fetch_add(1);
  unlink_locked(slot, class_of(length));
  range.end.store(0);
  version_.fetch_add(1);
}

// Adds the slot to the list of those that stay. API context; takes mutex_.
void Exports::keep(uint32_t slot) {
  Guard guard(mutex_);
  kept_slots_[slot].next = kept_;
  kept_ = slot;
}

// Empties the list of those that stay. API context; takes mutex_.
uint32_t Exports::take_kept() {
  Guard guard(mutex_);
  return std::exchange(kept_, kNone);
}

}  // namespace pinrail::gpusm
