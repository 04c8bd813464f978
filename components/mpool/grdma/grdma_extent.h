// SPDX-License-Identifier: BSD-3-Clause
// grdma_extent.h - how much more than what was asked for a miss of one pool registers.
//
// Owns     what was seen in each neighbourhood (2 MiB of addresses): 1,024 entries, each of which another neighbourhood
//          may take, and then what was learned is lost.
// Threads  all functions may run together. Each entry is a hint by itself, so all accesses are relaxed atomics.
// Hook     died_hook().
//
// grdma_extent/X1  What is registered has all rights that were asked for. What the registrar refused in a neighbourhood
//     is not asked for again there, until an event ends a registration in it.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_EXTENT_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_EXTENT_H

#include <pinrail/types.h>

#include <atomic>

#include "base/core/span.h"

namespace pinrail::grdma {

class Extents {
 public:
  explicit Extents(bool all_rights) : all_rights_(all_rights) {}

  // R4: the rights to register.
  uint32_t rights_for(const Span& asked, uint32_t rights) const {
    return all_rights_ && (seen_at(asked) & kRefusesRights) == 0 ? rights | widest_.load(std::memory_order_relaxed)
                                                                 : rights;
  }
  // Whether the registrar has ever granted all rights: then it is out of resources for other reasons than these.
  bool has_granted_all() const { return has_granted_all_.load(std::memory_order_relaxed); }
  void granted_all() {
    if (!has_granted_all()) has_granted_all_.store(true, std::memory_order_relaxed);
  }
  // A device that has granted nothing yet may be one without atomics, of which all else is asked from now on.
  void refused_rights(const Span& asked) {
    note(asked, seen_at(asked) | kRefusesRights);
    if (!has_granted_all()) widest_.store(kWithoutAtomics, std::memory_order_relaxed);
  }
  // An event has ended a registration.
  void died_hook(const Span& registered) {
    const uint32_t seen = seen_at(registered);
    if (seen != 0) note(registered, seen & ~kRefusesRights);
  }

 private:
  static constexpr uint32_t kWithoutAtomics = PINRAIL_RIGHTS_MASK & ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC};
  static constexpr unsigned kShift = 21;  // 2 MiB
  static constexpr unsigned kEntries = 1024;
  // An entry: what was seen, below the neighbourhood's number but for the bits that choose the entry.
  static constexpr uint32_t kRefusesRights = 1;
  static constexpr uint32_t kSeen = 0xff;

  static uint32_t tag_of(const Span& span) { return static_cast<uint32_t>(span.base >> kShift >> 10 << 8); }
  const std::atomic<uint32_t>& entry_of(const Span& span) const {
    return entries_[span.base >> kShift & (kEntries - 1)];
  }
  // What was seen where the span begins; 0: nothing.
  uint32_t seen_at(const Span& span) const {
    const uint32_t entry = entry_of(span).load(std::memory_order_relaxed);
    return (entry & ~kSeen) == tag_of(span) ? entry & kSeen : 0;
  }
  void note(const Span& span, uint32_t seen) {
    const_cast<std::atomic<uint32_t>&>(entry_of(span)).store(tag_of(span) | seen, std::memory_order_relaxed);
  }

  const bool all_rights_;
  std::atomic<bool> has_granted_all_{false};
  std::atomic<uint32_t> widest_{PINRAIL_RIGHTS_MASK};
  std::atomic<uint32_t> entries_[kEntries] = {};
};

}  // namespace pinrail::grdma

#endif
