// SPDX-License-Identifier: BSD-3-Clause
// grdma_extent.h - how much more than what was asked for a miss of one pool registers: all rights, and pages around the
// range, up to an aligned window. What it learns is a hint: lost or torn, it costs a registrar's call and nothing else.
//
// Owns     what was seen in each neighbourhood (2 MiB of addresses): 1,024 entries, each of which another neighbourhood
//          may take; and the pool's chances.
// Threads  all functions may run together; all accesses are relaxed atomics.
// Hook     All functions.
//
// What is registered has all rights that were asked for, and contains the range. What the registrar refused in a
// neighbourhood is not asked for again there, until an event ends a registration in it.
//
// grdma_extent/X2  A miss looks beyond its range while the pool has chances left. An event takes one when it ends a
//     registration whose wider part answered too few requests for its pages. Without any the windows rest for some
//     thousand misses, and the pool has a few again.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_EXTENT_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_EXTENT_H

#include <pinrail/types.h>

#include <atomic>

#include "base/core/span.h"
#include "base/registration/registration.h"

namespace pinrail::grdma {

class Extents {
 public:
  // window: bytes of the largest window, a power of two; 0: ranges are registered as asked for.
  Extents(bool all_rights, size_t window) : all_rights_(all_rights), window_(window) {}

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
  void note_refused_rights(const Span& asked) {
    note(asked, seen_at(asked) | kRefusesRights);
    if (!has_granted_all()) widest_.store(kWithoutAtomics, std::memory_order_relaxed);
  }

  bool is_on() const { return window_ != 0; }
  // Before all other functions: ranges are registered as asked for.
  void turn_off() { window_ = 0; }
  // The most that is registered for a miss of the range: the windows that it reaches into.
  Span window_for(const Span& asked);
  // The registrar has refused the wider part, or lacks room for it.
  void note_refused_wider(const Span& asked, bool lacks_room);
  // An event has ended an indexed registration. The caller holds the lock of the index that had it.
  void died_hook(const pinrail_registration_t* reg);

  // Marks a registration that is being made as wider than what was asked for.
  static void mark_wider(pinrail_registration_t* reg, const Span& asked);
  // A registration has answered a request that the pool was asked for. The calling thread has a reference.
  void answered(pinrail_registration_t* reg, const Span& asked) {
    const uint32_t link = is_on() ? __atomic_load_n(&reg->link, __ATOMIC_RELAXED) : 0;
    if ((link & kWider) != 0) answered_by_wider(reg, link, asked);
  }

  uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kWithoutAtomics = PINRAIL_RIGHTS_MASK & ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC};
  static constexpr unsigned kShift = 21;  // 2 MiB
  static constexpr unsigned kEntries = 1024;
  // An entry: what was seen, below the neighbourhood's number but for the bits that choose the entry.
  static constexpr uint32_t kRefusesRights = 1, kRefusesWider = 2;
  static constexpr uint32_t kSeen = 0xff;
  // What pinrail_registration_t::link is while a wider registration is indexed: pages before and behind what was asked
  // for, and how many requests the wider part has answered.
  static constexpr uint32_t kWider = 1u << 31;
  static constexpr unsigned kBeforeShift = 10, kAnswersShift = 20;
  static constexpr uint32_t kMostPages = (1 << 10) - 1, kMostAnswers = (1 << 11) - 1;
  static constexpr unsigned kPageShift = 12;
  // A call that was saved pays for so many pages: between a fast device (1.9 us a call, 69.5 ns a page) and a slow one.
  static constexpr uint32_t kPagesOfACall = 32;
  // Measured on the recorded traces: a malloc that maps and unmaps each buffer is soon left alone, and programs that
  // give little memory back never are. Smaller windows cost more than none where buffers come and go.
  static constexpr int kChances = 16, kRest = 4096, kChancesLater = 4;

  static uint32_t tag_of(const Span& span) { return static_cast<uint32_t>(span.base >> kShift >> 10 << 8); }
  static constexpr unsigned index_of(const Span& span) { return span.base >> kShift & (kEntries - 1); }
  // What was seen where the span begins; 0: nothing.
  uint32_t seen_at(const Span& span) const {
    const uint32_t entry = entries_[index_of(span)].load(std::memory_order_relaxed);
    return (entry & ~kSeen) == tag_of(span) ? entry & kSeen : 0;
  }
  void note(const Span& span, uint32_t seen) {
    entries_[index_of(span)].store(tag_of(span) | seen, std::memory_order_relaxed);
  }
  void answered_by_wider(pinrail_registration_t* reg, uint32_t link, const Span& asked);

  const bool all_rights_;
  size_t window_;
  std::atomic<bool> has_granted_all_{false};
  std::atomic<uint32_t> widest_{PINRAIL_RIGHTS_MASK};
  std::atomic<int> chances_{kChances};  // below 0: how many misses the windows rest
  std::atomic<uint64_t> hits_{0}, lost_{0};
  std::atomic<uint32_t> entries_[kEntries] = {};
};

}  // namespace pinrail::grdma

#endif
