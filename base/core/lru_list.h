// SPDX-License-Identifier: BSD-3-Clause
// lru_list.h - the LRU list of a cache: which idle registration was used longest ago?
//
// A heap by the epoch of the last use *as the list knows it*. Hits do not touch the list, they only write the epoch
// into the registration; the list catches up when an entry comes to the top. Exact to an epoch,
// O(log n); where each use has an epoch of its own, exact.
//
// Owns     places. Not the registrations.
// Threads  one at a time (the lock of the cache).
//
// U1  The epoch that the list knows of an entry is never later than its true one, so the top, once caught up, is the
//     least recently used.
// U2  place_of(reg) is where the entry stands, plus 1; 0: not listed.
#ifndef PINRAIL_BASE_CORE_LRU_LIST_H
#define PINRAIL_BASE_CORE_LRU_LIST_H

#include <pinrail/types.h>

#include <utility>
#include <vector>

namespace pinrail {

// PlaceOf(reg) gives a uint32_t& in which the list keeps the entry's place.
template <typename PlaceOf>
class LruList {
 public:
  struct Entry {
    uint64_t epoch;
    pinrail_registration_t* reg;
  };

  // Room for n entries, so that insert() does not allocate. May throw bad_alloc.
  void reserve(size_t n) {
    if (n > heap_.capacity()) heap_.reserve(n + n / 8 + 64);
  }
  size_t size() const { return heap_.size(); }
  bool empty() const { return heap_.empty(); }
  const Entry& top() const { return heap_.front(); }

  void insert(pinrail_registration_t* reg, uint64_t epoch) {
    heap_.push_back({epoch, reg});
    PlaceOf()(reg) = static_cast<uint32_t>(heap_.size());
    up(heap_.size() - 1);
  }

  void remove(pinrail_registration_t* reg) {
    const size_t at = PlaceOf()(reg) - 1;
    PlaceOf()(reg) = 0;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    put(at, last);
    up(at);
    down(PlaceOf()(last.reg) - 1);
  }

  // The top entry was used later than the list knew.
  void catch_up(uint64_t epoch) {
    heap_.front().epoch = epoch;
    down(0);
  }

  bool holds(const pinrail_registration_t* reg) const { return PlaceOf()(reg) != 0; }

  // U1 as far as the list can see it, and U2.
  bool in_order() const {
    for (size_t i = 0; i < heap_.size(); ++i) {
      if (PlaceOf()(heap_[i].reg) != i + 1) return false;
      if (i > 0 && heap_[i].epoch < heap_[(i - 1) / 2].epoch) return false;
    }
    return true;
  }

 private:
  void put(size_t at, const Entry& entry) {
    heap_[at] = entry;
    PlaceOf()(entry.reg) = static_cast<uint32_t>(at + 1);
  }

  void up(size_t at) {
    const Entry entry = heap_[at];
    for (; at > 0 && entry.epoch < heap_[(at - 1) / 2].epoch; at = (at - 1) / 2) put(at, heap_[(at - 1) / 2]);
    put(at, entry);
  }

  void down(size_t at) {
    const Entry entry = heap_[at];
    for (;;) {
      size_t child = 2 * at + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && heap_[child + 1].epoch < heap_[child].epoch) ++child;
      if (heap_[child].epoch >= entry.epoch) break;
      put(at, heap_[child]);
      at = child;
    }
    put(at, entry);
  }

  std::vector<Entry> heap_;
};

}  // namespace pinrail

#endif
