// SPDX-License-Identifier: BSD-3-Clause
// lru_list.h - the LRU list of a cache: finds the idle registration whose last use is longest ago.
//
// The order is by the epoch of the last use *that the list knows*. Hits do not touch the list: they write the epoch
// into the registration, and catch_up() corrects an entry when it comes to the top. Two uses in one epoch have no
// order. Most entries are inserted with the newest epoch: these stand in a queue and cost a few steps. The others, and
// those that find no room in the queue, stand in a heap and cost O(log n).
//
// Owns     the positions. Not the registrations.
// Threads  One at a time: the caller holds the cache's lock.
// Context  API. Only reserve() allocates, if callers reserve enough.
//
// lru_list/U1  The epoch that the list knows of an entry is never later than the entry's true one. So the top entry,
//     once it is caught up, is the least recently used.
// lru_list/U2  PlaceOf()(reg) says where the entry is. 0: it is not listed. An odd number: in the heap, at place / 2.
//     An even number: in the queue, at place / 2 - 1.
#ifndef PINRAIL_BASE_LRU_LRU_LIST_H
#define PINRAIL_BASE_LRU_LRU_LIST_H

#include <pinrail/types.h>

#include <vector>

#include "base/lru/lru_queue.h"

namespace pinrail {

// PlaceOf()(reg) returns the uint32_t& in which the list keeps the entry's place.
template <typename PlaceOf>
class LruList {
 public:
  using Entry = LruQueue::Entry;

  // Makes room for n entries, so that insert() does not allocate. May throw bad_alloc.
  void reserve(size_t n) {
    if (n > heap_.capacity()) heap_.reserve(n + n / 8 + 64);
    queue_.reserve(n);
  }
  size_t size() const { return queue_.size() + heap_.size(); }
  bool empty() const { return size() == 0; }
  const Entry& top() const { return top_is_queued() ? queue_.front() : heap_.front(); }

  void insert(pinrail_registration_t* reg, uint64_t epoch) {
    uint32_t place;
    if (queue_.push(reg, epoch, &place)) {
      PlaceOf()(reg) = 2 * place + 2;
      return;
    }
    heap_.push_back({epoch, reg});
    up(heap_.size() - 1);
  }

  void remove(pinrail_registration_t* reg) {
    const uint32_t place = PlaceOf()(reg);
    PlaceOf()(reg) = 0;
    if (place % 2 == 0) {
      queue_.remove(place / 2 - 1);
    } else {
      remove_at(place / 2);
    }
  }

  // Moves the top entry: it was used at `epoch`, later than the list knew.
  void catch_up(uint64_t epoch) {
    if (top_is_queued()) {
      pinrail_registration_t* reg = top().reg;
      remove(reg);
      insert(reg, epoch);
    } else {
      heap_.front().epoch = epoch;
      down(0);
    }
  }

  bool holds(const pinrail_registration_t* reg) const { return PlaceOf()(reg) != 0; }

  // Checks lru_list/U1 as far as the list can, and lru_list/U2 for the heap.
  bool in_order() const {
    for (size_t i = 0; i < heap_.size(); ++i) {
      if (PlaceOf()(heap_[i].reg) != 2 * i + 1) return false;
      if (i > 0 && heap_[i].epoch < heap_[(i - 1) / 2].epoch) return false;
    }
    return queue_.in_order();
  }

 private:
  bool top_is_queued() const {
    return !queue_.empty() && (heap_.empty() || queue_.front().epoch <= heap_.front().epoch);
  }

  void remove_at(size_t at) {
    const Entry last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    heap_[at] = last;
    up(at);
    down(PlaceOf()(last.reg) / 2);
  }

  void put(size_t at, const Entry& entry) {
    heap_[at] = entry;
    PlaceOf()(entry.reg) = static_cast<uint32_t>(2 * at + 1);
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

  LruQueue queue_;
  std::vector<Entry> heap_;
};

}  // namespace pinrail

#endif
