// SPDX-License-Identifier: BSD-3-Clause
// lru_list.h - the LRU list of a cache: finds the idle registration whose last use is longest ago. A binary heap.
//
// The order is by the epoch of the last use *that the list knows*. Hits do not touch the list: they write the epoch
// into the registration, and catch_up() corrects an entry when it comes to the top. Two uses in one epoch have no
// order. Each change costs O(log n): it is for pools whose devices take a hundred times longer.
//
// Owns     the positions. Not the registrations.
// Threads  One at a time: the caller holds the cache's lock.
// Context  API. Only reserve() allocates, if callers reserve enough.
//
// lru_list/U1  The epoch that the list knows of an entry is never later than the entry's true one. So the top entry,
//     once it is caught up, is the least recently used.
// lru_list/U2  PlaceOf()(reg) is the entry's place in the heap and 1 more. 0: it is not listed.
#ifndef PINRAIL_BASE_LRU_LRU_LIST_H
#define PINRAIL_BASE_LRU_LRU_LIST_H

#include <pinrail/types.h>

#include <algorithm>
#include <vector>

namespace pinrail {

// PlaceOf()(reg) returns the uint32_t& in which the list keeps the entry's place.
template <typename PlaceOf>
class LruList {
 public:
  struct Entry {
    uint64_t epoch;
    pinrail_registration_t* reg;
  };

  // Makes room for n entries, so that insert() does not allocate. May throw bad_alloc.
  void reserve(size_t n) {
    if (n > heap_.capacity()) heap_.reserve(n + n / 8 + 64);
  }
  size_t size() const { return heap_.size(); }
  bool empty() const { return heap_.empty(); }
  const Entry& top() const { return heap_.front(); }

  void insert(pinrail_registration_t* reg, uint64_t epoch) {
    heap_.push_back({epoch, reg});
    up(heap_.size() - 1);
  }

  void remove(pinrail_registration_t* reg) {
    const size_t at = PlaceOf()(reg) - 1;
    PlaceOf()(reg) = 0;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    heap_[at] = last;
    up(at);
    down(PlaceOf()(last.reg) - 1);
  }

  // Moves the top entry: it was used at `epoch`, later than the list knew.
  void catch_up(uint64_t epoch) {
    heap_.front().epoch = epoch;
    down(0);
  }

  bool holds(const pinrail_registration_t* reg) const { return PlaceOf()(reg) != 0; }

  // Calls visit(reg) for all entries, in no order, until it returns true; returns whether it did.
  template <typename Visit>
  bool visit_until(Visit&& visit) const {
    return std::any_of(heap_.begin(), heap_.end(), [&](const Entry& entry) { return visit(entry.reg); });
  }

  // Checks lru_list/U1 as far as the list can, and lru_list/U2.
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
