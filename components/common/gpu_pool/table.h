// SPDX-License-Identifier: BSD-3-Clause
// table.h - a hash table of registrations by owner and base: open addressing with linear probing.
//
// Owns     its entries (Way), not the registrations.
// Threads  the caller holds the cache lock.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_TABLE_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_TABLE_H

#include <pinrail/types.h>

#include <vector>

namespace pinrail::gpu_pool {

class Table {
 public:
  // Makes room for one more, so that insert() does not allocate. May throw bad_alloc.
  void reserve_one() {
    if (2 * (count_ + 1) <= ways_.size()) return;
    std::vector<Way> old(ways_.empty() ? 64 : 2 * ways_.size());
    old.swap(ways_);
    for (const Way& way : old) {
      if (way.reg != nullptr) put(way);
    }
  }

  void insert(uint64_t hash, pinrail_registration_t* reg) {
    put({hash, reg});
    ++count_;
  }

  // The registration must be in the table.
  void remove(uint64_t hash, const pinrail_registration_t* reg) {
    size_t at = hash & mask();
    while (ways_[at].reg != reg) at = (at + 1) & mask();
    close_gap(at);
    --count_;
  }

  // Calls visit(reg) for each registration of that hash until it returns true; returns that registration, or NULL.
  template <typename Visit>
  pinrail_registration_t* find(uint64_t hash, Visit&& visit) const {
    if (ways_.empty()) return nullptr;
    for (size_t at = hash & mask(); ways_[at].reg != nullptr; at = (at + 1) & mask()) {
      if (ways_[at].hash == hash && visit(ways_[at].reg)) return ways_[at].reg;
    }
    return nullptr;
  }

  size_t count() const { return count_; }

 private:
  struct Way {
    uint64_t hash = 0;
    pinrail_registration_t* reg = nullptr;
  };

  size_t mask() const { return ways_.size() - 1; }

  void put(const Way& way) {
    size_t at = way.hash & mask();
    while (ways_[at].reg != nullptr) at = (at + 1) & mask();
    ways_[at] = way;
  }

  // Moves later entries of the probe sequence into the gap, so that each can still be found.
  void close_gap(size_t gap) {
    for (size_t at = (gap + 1) & mask(); ways_[at].reg != nullptr; at = (at + 1) & mask()) {
      const size_t home = ways_[at].hash & mask();
      if (((at - home) & mask()) < ((at - gap) & mask())) continue;
      ways_[gap] = ways_[at];
      gap = at;
    }
    ways_[gap] = {};
  }

  std::vector<Way> ways_;
  size_t count_ = 0;
};

}  // namespace pinrail::gpu_pool

#endif
