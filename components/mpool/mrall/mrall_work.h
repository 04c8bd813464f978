// SPDX-License-Identifier: BSD-3-Clause
// mrall_work.h - what the maker of registrations has to look at: ranges that events have touched, and demands of
// callers that wait. The maker is one thread at a time; it takes all work at once, and this is a round.
//
// Owns     ranges, in place. Each Demand is a local variable of its caller.
// Threads  all functions may run together; begin_round() and end_round() alternate on the maker's thread.
// Hook     what ends in _hook, alone. The lock is held for moments and never across an allocation.
//
// mrall_work/W1  A range that an event touched is in the queue until a round has begun after the event. So what a round
//     has read of the mappings is older than the event only if the queue still has the range: was_touched_locked().
//
// A demand is answered by a round that began after it was made.
#ifndef PINRAIL_COMPONENTS_MPOOL_MRALL_WORK_H
#define PINRAIL_COMPONENTS_MPOOL_MRALL_WORK_H

#include <algorithm>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/sync/lock.h"

namespace pinrail::mrall {

constexpr Span kEverything{0, UINTPTR_MAX};

// Ranges, joined where they touch; if there are too many, everything.
struct Ranges {
  static constexpr size_t kRoom = 64;
  Span spans[kRoom];
  size_t count = 0;

  void add_hook(const Span& span) {
    for (size_t i = count; i-- > 0;) {
      if (span.base > spans[i].end || spans[i].base > span.end) continue;
      spans[i] = {std::min(spans[i].base, span.base), std::max(spans[i].end, span.end)};
      return;
    }
    if (count == kRoom) {
      spans[0] = kEverything;
      count = 1;
      return;
    }
    spans[count++] = span;
  }
  bool overlaps(const Span& span) const {
    for (size_t i = 0; i < count; ++i) {
      if (spans[i].overlaps(span)) return true;
    }
    return false;
  }
};

// A caller that waits. After it is done: the status says whether the whole range is registered with the rights.
struct Demand {
  Span span;
  uint32_t rights = 0;
  bool is_exact = false;  // registers no more than the range, which fewer events touch
  bool is_done = false;
  Status status = success();
  Demand* next = nullptr;
};

class Work {
 public:
  explicit Work(HookLocks locks) : mutex(LockRank::pending, locks) {}

  void touch_locked_hook(const Span& span) REQUIRES(mutex) { touched_.add_hook(span); }
  bool was_touched_locked(const Span& span) const REQUIRES(mutex) { return touched_.overlaps(span); }

  // Makes the demand. wait() returns when a round has answered it.
  void ask(Demand* demand) EXCLUDES(mutex);
  void wait(const Demand& demand) EXCLUDES(mutex);

  // is_due: there is a reason for a round, whatever was asked. False: there is nothing to do, or rounds are paused.
  bool begin_round(bool is_due, Ranges* touched_out, Demand** demands_out) EXCLUDES(mutex);
  // Wakes those that wait; each demand of the round has its status. Their memory may be gone afterwards. `left` are
  // ranges that the round could not look at: they are queued again.
  void end_round(Demand* demands, const Ranges& left) EXCLUDES(mutex);

  // Whether a range is queued that no round has begun to look at.
  bool is_behind() EXCLUDES(mutex);

  // From pause() to resume() no round runs. pause() waits for one under way. Not on the maker's thread.
  void pause() EXCLUDES(mutex);
  void resume() EXCLUDES(mutex);

  // "pending" in lock_rank.h. Public: what is published is published under it (mrall/A2).
  HookMutex mutex;

 private:
  Ranges touched_ GUARDED_BY(mutex);
  Demand* demands_ GUARDED_BY(mutex) = nullptr;
  unsigned pauses_ GUARDED_BY(mutex) = 0;
  bool is_running_ GUARDED_BY(mutex) = false;
  Condition changed_;  // a round has ended
};

}  // namespace pinrail::mrall

#endif
