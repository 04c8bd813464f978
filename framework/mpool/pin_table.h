// SPDX-License-Identifier: BSD-3-Clause
// pin_table.h - which ranges of a pool the program has pinned ahead of their use, and how often.
//
// Owns     the counts. framework/front/front_pin.cc takes and drops the references that the pins hold.
// Threads  all functions may run together. API context; the caller holds no lock of a pool. They take mutex_.
//
// pin_table/P1  An entry has a count above 0 and one handle. All pins of its range hold this handle's reference
//     together.
#ifndef PINRAIL_FRAMEWORK_MPOOL_PIN_TABLE_H
#define PINRAIL_FRAMEWORK_MPOOL_PIN_TABLE_H

#include <pinrail/types.h>

#include <map>
#include <tuple>
#include <vector>

#include "base/sync/lock.h"

namespace pinrail::mpool {

class PinTable {
 public:
  struct Key {
    uintptr_t base;
    size_t length;
    uint32_t access;
    bool operator<(const Key& other) const {
      return std::tie(base, length, access) < std::tie(other.base, other.length, other.access);
    }
  };
  using Handles = std::vector<pinrail_handle_t>;

  // Adds one pin of the range. handle: a reference to its present registration, which the table takes over. Returns a
  // reference that the caller must drop: the given one if the entry already holds the same registration, or the
  // entry's former one if the memory was remapped; an empty handle for a new entry. May throw bad_alloc; then nothing
  // has changed.
  pinrail_handle_t add(const Key& key, pinrail_handle_t handle) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    Entry& entry = entries_[key];
    const pinrail_handle_t former = entry.handle;
    const bool is_same = former.reg == handle.reg && former.generation == handle.generation;
    ++entry.count;
    entry.handle = handle;
    return is_same ? handle : former;
  }

  // Removes one pin of each range; `to_drop` receives the references that no pin holds any more. False, and nothing
  // has changed: a range is not pinned that often. May throw bad_alloc; then nothing has changed.
  bool remove(const std::vector<Key>& keys, Handles* to_drop) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    std::map<Key, size_t> wanted;
    for (const Key& key : keys) ++wanted[key];
    for (const auto& [key, times] : wanted) {
      const auto at = entries_.find(key);
      if (at == entries_.end() || at->second.count < times) return false;
    }
    to_drop->reserve(wanted.size());
    for (const auto& [key, times] : wanted) {
      const auto at = entries_.find(key);
      at->second.count -= times;
      if (at->second.count != 0) continue;
      to_drop->push_back(at->second.handle);
      entries_.erase(at);
    }
    return true;
  }

 private:
  struct Entry {
    size_t count = 0;
    pinrail_handle_t handle = {nullptr, 0};
  };
  Mutex mutex_{LockRank::pins};
  std::map<Key, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace pinrail::mpool

#endif
