// SPDX-License-Identifier: BSD-3-Clause
// known_mappings_hook.h - verdicts on parts of mappings: kept until a memory event touches them, found without a lock.
//
// Owns     at most 1,024 verdicts, in place, by ascending address; when the table is full, an insert replaces a
//          neighbour.
// Threads  all functions may run together. A seqlock (version_) guards the entries; writers hold mutex_.
// Hook     all functions; keep() too, so that the lock is a leaf.
//
// known_mappings_hook/K1  What find() returns is a part of what was kept, and no event has touched that part since.
// known_mappings_hook/K2  If an event touches a mapping after begin_lookup(), keep() stores nothing for it: the event
//     wins. Other events do not count: before Linux 6.11 a look reads the list of all mappings, which takes
//     milliseconds where there are thousands, and in a program of many threads some event comes in that time.
#ifndef PINRAIL_FRAMEWORK_MONITOR_KNOWN_MAPPINGS_HOOK_H
#define PINRAIL_FRAMEWORK_MONITOR_KNOWN_MAPPINGS_HOOK_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/core/compiler.h"
#include "base/core/own_component.h"
#include "base/core/span.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/lock.h"

namespace pinrail::monitor {

struct Verdict {
  Span span;  // whole pages
  bool covered = false;
  bool is_private = false;  // writable memory without a file, of this process alone
};

class KnownMappings {
 public:
  static constexpr size_t kRoom = 1024;
  static constexpr size_t kEvents = 64;  // remembered while a look is under way

  // Finds the verdict on what lies around the address, at most its whole mapping; false: none is known.
  bool find(uintptr_t at, Verdict* verdict_out) const;

  // Each begin_lookup() is followed by one end_lookup(). Between them keep() stores a verdict; ticket: what
  // begin_lookup() returned. False: an event touched the range, or so many events came that this cannot be told.
  uint64_t begin_lookup();
  bool keep(uint64_t ticket, const Verdict& verdict);
  void end_lookup() { lookups_.fetch_sub(1); }

  // Takes the span out of the verdicts. An event that touches none takes no lock while no look is under way.
  // acquire: as load() in known_mappings_hook.cc; behind lookups_, so that what a look has kept is seen.
  void forget_hook(const Span& span) {
    const bool is_quiet = lookups_.load() == 0 && count_.load(std::memory_order_acquire) == 0;
    if (unlikely(!is_quiet)) forget_if_known_hook(span);
  }

  size_t count() const { return count_.load(std::memory_order_relaxed); }  // relaxed: only shown

 private:
  // What find() reads without the lock, guarded by the seqlock. The lowest bits of `end` are flags.
  struct Entry {
    std::atomic<uintptr_t> base{0}, end{0};
  };

  size_t first_ending_above(uintptr_t at) const;
  Verdict first_above(uintptr_t at) const;
  bool look_above(uintptr_t at, Verdict* first_out) const;
  void forget_if_known_hook(const Span& span);
  bool was_touched_locked(uint64_t ticket, const Span& span) const REQUIRES(mutex_);
  void begin_change_locked() REQUIRES(mutex_);
  void end_change_locked() REQUIRES(mutex_);
  void cut_locked(const Span& span) REQUIRES(mutex_);
  void insert_locked(const Verdict& verdict) REQUIRES(mutex_);
  void insert_at_locked(size_t place, uintptr_t base, uintptr_t end) REQUIRES(mutex_);
  void write_entry_locked(size_t at, uintptr_t base, uintptr_t end) REQUIRES(mutex_);
  void move_entry_locked(size_t to, size_t from) REQUIRES(mutex_);

  mutable HookMutex mutex_{LockRank::mappings, deferred::kLocks};
  std::atomic<uint32_t> lookups_{0};
  std::atomic<uint64_t> version_{0};  // odd while the entries change
  std::atomic<size_t> count_{0};
  Entry entries_[kRoom];
  uint64_t events_ GUARDED_BY(mutex_) = 0;  // that came while a look was under way, or that touched a verdict
  Span recent_events_[kEvents] GUARDED_BY(mutex_) = {};  // the last ones of these
};

// The mappings of files and segments of which registrations may be kept, for events that name a
// file and not addresses.
//
// Owns     at most kRoom parts of mappings, in place.
// Threads  all functions may run together; mutex_ guards the parts.
// Hook     all functions; add() too, so that the lock is a leaf.
//
// known_mappings_hook/F1  A registration of a mapping that shows a file is kept only if the registration's range is in
// the
//     table: add() precedes the verdict that permits it, and a part leaves the table only by an event that ends
//     the registrations of that part.
class KeptFiles {
 public:
  static constexpr size_t kRoom = 1024;

  // offset: of the span's first byte in the file. False: there is no room, so nothing of the mapping may be kept. What
  // overlaps it and shows another file stays: it is one that is mapped by now, or one of which an event says too much.
  bool add(const Span& span, uint64_t inode, uint64_t offset);
  // Removes what the span holds of each part.
  void forget_hook(const Span& span);
  // Finds the lowest range at or above `from` that shows bytes of the file. False: there is none.
  bool find_hook(const pinrail_file_part_t& file, uintptr_t from, Span* span_out) const;
  // seq_cst: a hook that finds the table empty before its call looks again afterwards.
  bool is_empty_hook() const { return count_.load() == 0; }

 private:
  struct Part {
    Span span;
    uint64_t inode = 0, offset = 0;
  };

  mutable HookMutex mutex_{LockRank::mappings, deferred::kLocks};
  std::atomic<size_t> count_{0};  // changes under mutex_
  Part parts_[kRoom] GUARDED_BY(mutex_) = {};
};

}  // namespace pinrail::monitor

#endif
