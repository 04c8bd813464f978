// SPDX-License-Identifier: BSD-3-Clause
// pin_table.h - which ranges of a pool the program has pinned ahead of their use, and how often.
//
// Owns     the counts. framework/api/pin_job.cc takes, and api_pin.cc drops, the references that the pins hold.
// Threads  all functions may run together. API context; the caller holds no lock of a pool. They take mutex_.
//
// An entry has a count above 0, and a handle for each chunk of its range. All pins of the range hold these references
// together.
#ifndef PINRAIL_FRAMEWORK_MPOOL_PIN_TABLE_H
#define PINRAIL_FRAMEWORK_MPOOL_PIN_TABLE_H

#include <pinrail/types.h>

#include <algorithm>
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

  // Adds one pin of the range. handles: references to its registrations, which the table takes over. Afterwards it has
  // the references that the caller must drop: the given ones if the entry already holds the same registrations, or if
  // an event has ended some of them and none of the entry's, which are newer then; else the entry's former ones, as
  // when the memory was remapped. is_live(handle) tells whether no event has ended it. May throw bad_alloc; then
  // nothing has changed.
  template <typename IsLive>
  void add(const Key& key, Handles* handles, IsLive&& is_live) EXCLUDES(mutex_) {
    const auto are_live = [&](const Handles& all) { return std::all_of(all.begin(), all.end(), is_live); };
    Guard guard(mutex_);
    const auto before = entries_.find(key);
    if (before != entries_.end() && !are_live(*handles) && are_live(before->second.handles)) {
      ++before->second.count;
      return;
    }
    Entry& entry = entries_[key];
    const bool is_same = std::equal(entry.handles.begin(), entry.handles.end(), handles->begin(), handles->end(),
                                    [](const pinrail_handle_t& a, const pinrail_handle_t& b) {
                                      return a.reg == b.reg && a.generation == b.generation;
                                    });
    ++entry.count;
    if (!is_same) entry.handles.swap(*handles);
  }

  // Removes one pin of a range that is pinned. handles_out: empty; receives the references if it was the last pin.
  void remove_one(const Key& key, Handles* handles_out) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end() || --at->second.count != 0) return;
    handles_out->swap(at->second.handles);
    entries_.erase(at);
  }

  // Removes all pins of one range, whichever. handles_out: empty; receives their references. False: there is no pin.
  bool remove_any(Handles* handles_out) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    if (entries_.empty()) return false;
    handles_out->swap(entries_.begin()->second.handles);
    entries_.erase(entries_.begin());
    return true;
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
    size_t most = 0;
    for (const auto& [key, times] : wanted) most += entries_.find(key)->second.handles.size();
    to_drop->reserve(most);
    for (const auto& [key, times] : wanted) {
      const auto at = entries_.find(key);
      at->second.count -= times;
      if (at->second.count != 0) continue;
      to_drop->insert(to_drop->end(), at->second.handles.begin(), at->second.handles.end());
      entries_.erase(at);
    }
    return true;
  }

 private:
  struct Entry {
    size_t count = 0;
    Handles handles;
  };
  Mutex mutex_{LockRank::leaf};
  std::map<Key, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace pinrail::mpool

#endif
