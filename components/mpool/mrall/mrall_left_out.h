// SPDX-License-Identifier: BSD-3-Clause
// mrall_left_out.h - which mapped memory is not registered, and why.
//
// Owns     the entries.
// Threads  all functions may run together. API context: they may throw bad_alloc.
//
// Entries are disjoint.
#ifndef PINRAIL_COMPONENTS_MPOOL_MRALL_LEFT_OUT_H
#define PINRAIL_COMPONENTS_MPOOL_MRALL_LEFT_OUT_H

#include <pinrail/listing.h>

#include <map>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/sync/lock.h"

namespace pinrail::mrall {

class LeftOut {
 public:
  struct Why {
    pinrail_left_out_reason_t reason;
    pinrail_status_t status;
  };

  // Replaces what was known of the span. Entries that touch and have the same reason become one.
  void set(const Span& span, const Why& why) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    erase_locked(span);
    Span joined = span;
    auto next = entries_.lower_bound(span.end);
    if (next != entries_.end() && next->first == span.end && is_same(next->second.why, why)) {
      joined.end = next->second.end;
      next = entries_.erase(next);
    }
    if (next != entries_.begin()) {
      auto before = std::prev(next);
      if (before->second.end == joined.base && is_same(before->second.why, why)) {
        joined.base = before->first;
        entries_.erase(before);
      }
    }
    entries_[joined.base] = {joined.end, why};
  }

  void erase(const Span& span) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    erase_locked(span);
  }

  // The entry that contains the span. False: there is none.
  bool find(const Span& span, Why* why_out) const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    auto at = entries_.upper_bound(span.base);
    if (at == entries_.begin()) return false;
    --at;
    if (at->second.end < span.end) return false;
    *why_out = at->second.why;
    return true;
  }

  // Writes up to room entries, ascending; returns their number.
  size_t list(pinrail_left_out_t* entries_out, size_t room) const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    size_t i = 0;
    for (auto at = entries_.begin(); at != entries_.end() && i < room; ++at, ++i) {
      entries_out[i] = {reinterpret_cast<void*>(at->first),  // NOLINT(performance-no-int-to-ptr): an address
                        at->second.end - at->first, at->second.why.reason, at->second.why.status};
    }
    return entries_.size();
  }

 private:
  struct Entry {
    uintptr_t end;
    Why why;
  };

  static bool is_same(const Why& a, const Why& b) { return a.reason == b.reason && a.status == b.status; }

  void erase_locked(const Span& span) REQUIRES(mutex_) {
    auto at = entries_.upper_bound(span.base);
    if (at != entries_.begin()) --at;
    while (at != entries_.end() && at->first < span.end) {
      const uintptr_t base = at->first;
      const Entry entry = at->second;
      if (entry.end <= span.base) {
        ++at;
        continue;
      }
      at = entries_.erase(at);
      if (base < span.base) entries_[base] = {span.base, entry.why};
      if (entry.end > span.end) at = entries_.emplace(span.end, entry).first;
    }
  }

  mutable Mutex mutex_{LockRank::cache};
  std::map<uintptr_t, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace pinrail::mrall

#endif
