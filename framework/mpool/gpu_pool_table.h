// SPDX-License-Identifier: BSD-3-Clause
// gpu_pool_table.h - a hash table of registrations by owner and base: open addressing with linear probing.
//
// Owns     its entries (Way), not the registrations.
// Threads  the caller holds the cache lock.
#ifndef PINRAIL_FRAMEWORK_MPOOL_GPU_POOL_TABLE_H
#define PINRAIL_FRAMEWORK_MPOOL_GPU_POOL_TABLE_H

#include <pinrail/types.h>

#include <vector>

namespace pinrail::gpu_pool {

class Table {
 public:
  // Makes room for one more, so that insert() does not allocate. May throw bad_alloc.
  void reserve_one() {
    if (2 * (count_ + 1) <= slots_.size()) return;
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.reg != nullptr) put(slot);
    }
  }

  void insert(uint64_t hash, pinrail_registration_t* reg) {
    put({hash, reg});
    ++count_;
  }

  // The registration must be in the table.
  void remove(uint64_t hash, const pinrail_registration_t* reg) {
    size_t at = hash & mask();
    while (slots_[at].reg != reg) at = (at + 1) & mask();
    close_gap(at);
    --count_;
  }

  // Calls visit(reg) for each registration of that hash until it returns true; returns that registration, or NULL.
  template <typename Visit>
  pinrail_registration_t* find(uint64_t hash, Visit&& visit) const {
    if (slots_.empty()) return nullptr;
    for (size_t at = hash & mask(); slots_[at].reg != nullptr; at = (at + 1) & mask()) {
      if (slots_[at].hash == hash && visit(slots_[at].reg)) return slots_[at].reg;
    }
    return nullptr;
  }

  size_t count() const { return count_; }

 private:
  struct Slot {
    uint64_t hash = 0;
    pinrail_registration_t* reg = nullptr;
  };

  size_t mask() const { return slots_.size() - 1; }

  void put(const Slot& slot) {
    size_t at = slot.hash & mask();
    while (slots_[at].reg != nullptr) at = (at + 1) & mask();
    slots_[at] = slot;
  }

  // Moves later entries of the probe sequence into the gap, so that each can still be found.
  void close_gap(size_t gap) {
    for (size_t at = (gap + 1) & mask(); slots_[at].reg != nullptr; at = (at + 1) & mask()) {
      const size_t home = slots_[at].hash & mask();
      if (((at - home) & mask()) < ((at - gap) & mask())) continue;
      slots_[gap] = slots_[at];
      gap = at;
    }
    slots_[gap] = {};
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace pinrail::gpu_pool

#endif
