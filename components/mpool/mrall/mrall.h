// SPDX-License-Identifier: BSD-3-Clause
// mrall.h - one pool in which everything that the process has mapped is registered.
//
// Owns     its index, all its registrations, and the list of what it left out.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool, hooks and
//          the gc thread apart: destroy() waits for those.
// Hook     what ends in _hook, alone.
//
// mrall/A1  Only the maker (the process's gc thread, in work()) calls register_mem of the registrar: find and register
//     calls wait for it.
// mrall/A2  An event takes what it touches out of the index and then queues the ranges of all that it took out, under
//     one lock. The maker inserts under the same lock, and only what no event has touched since the round began, so no
//     registration that is in the index is older than its mapping (E1, E2).
//
// What an event has ended, or may end while it is held, is given back with the reason INVALIDATED: its memory may be
// another's by now (R12).
#ifndef PINRAIL_COMPONENTS_MPOOL_MRALL_MRALL_H
#define PINRAIL_COMPONENTS_MPOOL_MRALL_MRALL_H

#include <pinrail/listing.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/patch/maps.h"
#include "base/sync/lock.h"
#include "framework/mpool/indexed_pool.h"

namespace pinrail::mrall {

// What is mapped in this process, and with which rights a device may reach it.
//
// Owns     the lines that read() found, whose memory is kept from one read to the next: what a read allocated would
//          itself be a change of the mappings.
// Threads  One at a time. API context: read() may allocate.
//
// Lines ascend, are disjoint, and lie next to each other only if they differ or the kernel lists them so.
struct Line {
  Span span;
  uint32_t rights;                   // PINRAIL_ACCESS_* that the mapping permits
  bool is_registrable;               // false: `reason` says why not
  pinrail_left_out_reason_t reason;  // PROTECTED or DEVICE
};

class Maps {
 public:
  // Reads /proc/self/maps. May throw bad_alloc. TEMP_OUT_OF_RESOURCE: there is no descriptor, or no
  // memory. NOT_AVAILABLE: the system has no such file.
  Status read();
  void add(const patch::Mapping& mapping);

  const std::vector<Line>& lines() const { return lines_; }
  // The first line that ends above the address.
  size_t first_above(uintptr_t at) const;

  // Whether the whole span is registrable. rights_out: what all its lines permit. If not: reason_out says why, NONE: a
  // part is not mapped.
  bool is_registrable(const Span& span, uint32_t* rights_out, pinrail_left_out_reason_t* reason_out) const;
  // Extends the span to multiples of `step`, as far as memory that permits the rights is mapped without a gap.
  Span extend(const Span& span, uint32_t rights, size_t step) const;

 private:
  std::vector<Line> lines_;
};

// Which mapped memory is not registered, and why.
//
// Owns     the entries.
// Threads  all functions may run together. API context: they may throw bad_alloc.
//
// Entries are disjoint.
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

// What the maker of registrations has to look at: ranges that events have touched, and demands of
// callers that wait. The maker is one thread at a time; it takes all work at once, and this is a round.
//
// Owns     ranges, in place. Each Demand is a local variable of its caller.
// Threads  all functions may run together; begin_round() and end_round() alternate on the maker's thread.
// Hook     what ends in _hook, alone. The lock is held for moments and never across an allocation.
//
// mrall/W1  A range that an event touched is in the queue until a round has begun after the event. So what a round
//     has read of the mappings is older than the event only if the queue still has the range: was_touched_locked().
//
// A demand is answered by a round that began after it was made.
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
  void ask(Demand* demand) EXCLUDES(mutex) {
    Guard guard(mutex);
    demand->next = demands_;
    demands_ = demand;
  }
  void wait(const Demand& demand) EXCLUDES(mutex) {
    Guard guard(mutex);
    while (!demand.is_done) changed_.wait(mutex);
  }

  // is_due: there is a reason for a round, whatever was asked. False: there is nothing to do, or rounds are paused.
  bool begin_round(bool is_due, Ranges* touched_out, Demand** demands_out) EXCLUDES(mutex) {
    Guard guard(mutex);
    if (pauses_ != 0 || (!is_due && touched_.count == 0 && demands_ == nullptr)) return false;
    is_running_ = true;
    *touched_out = touched_;
    *demands_out = demands_;
    touched_.count = 0;
    demands_ = nullptr;
    return true;
  }
  // Wakes those that wait; each demand of the round has its status. Their memory may be gone afterwards. `left` are
  // ranges that the round could not look at: they are queued again.
  void end_round(Demand* demands, const Ranges& left) EXCLUDES(mutex) {
    Guard guard(mutex);
    for (size_t i = 0; i < left.count; ++i) touched_.add_hook(left.spans[i]);
    for (Demand* at = demands; at != nullptr; at = at->next) at->is_done = true;
    is_running_ = false;
    changed_.notify_all();
  }

  // Whether a range is queued that no round has begun to look at.
  bool is_behind() EXCLUDES(mutex) {
    Guard guard(mutex);
    return touched_.count != 0;
  }

  // From pause() to resume() no round runs. pause() waits for one under way. Not on the maker's thread.
  void pause() EXCLUDES(mutex) {
    Guard guard(mutex);
    ++pauses_;
    while (is_running_) changed_.wait(mutex);
  }
  void resume() EXCLUDES(mutex) {
    Guard guard(mutex);
    --pauses_;
  }

  // "pending" in lock_rank.h. Public: what is published is published under it (mrall/A2).
  HookMutex mutex;

 private:
  Ranges touched_ GUARDED_BY(mutex);
  Demand* demands_ GUARDED_BY(mutex) = nullptr;
  unsigned pauses_ GUARDED_BY(mutex) = 0;
  bool is_running_ GUARDED_BY(mutex) = false;
  Condition changed_;  // a round has ended
};

using mpool::Component;
using mpool::handle_of;

struct Settings : mpool::PoolSettings {
  size_t largest_piece = 0;
  uint32_t rescan_ms = 0;
};

class Pool : public mpool::IndexedPool<Pool, Settings> {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out);
  ~Pool();
  Status destroy(pinrail_thread_t* thread, uint32_t flags);

  Status register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out);
  void invalidate_range_hook(const Span& span);
  // Nothing is evicted on request: all that can be pinned is.
  static Status evict(pinrail_thread_t*) { return PINRAIL_ERR_NOT_FOUND; }
  // Returns when all that was mapped before the call is registered or left out.
  Status progress(pinrail_thread_t* thread);
  static Status ft_event(pinrail_thread_t*, pinrail_ft_state_t) { return PINRAIL_ERR_NOT_SUPPORTED; }
  void left_out(pinrail_left_out_t* entries_out, size_t room, size_t* count_out) const {
    *count_out = left_out_.list(entries_out, room);
  }
  size_t referenced();

 private:
  friend class mpool::Engine<Pool, Settings>;
  using Base = mpool::IndexedPool<Pool, Settings>;

  // mrall_component.cc
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings);
  Status connect();
  void resume();

  Status find_or_wait(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out);
  Status demand(Demand* demand);
  Status catch_up();

  // mrall_make.cc
  static int work_entry(void* pool, pinrail_thread_t* thread);
  void work(pinrail_thread_t* thread);
  Status make_round(pinrail_thread_t* thread, const Ranges& touched, Demand* demands, bool is_rescan);
  void update(pinrail_thread_t* thread, const Span& span);
  void judge_held(pinrail_thread_t* thread, const Span& span);
  void register_line(pinrail_thread_t* thread, const Span& span, uint32_t rights);
  void register_gap(pinrail_thread_t* thread, const Span& span, uint32_t rights);
  Status answer(pinrail_thread_t* thread, const Demand& demand);
  bool can_make_room(pinrail_thread_t* thread, const Span& span, Status status, const LeftOut::Why& why);
  void give_back_idle(pinrail_thread_t* thread, const Span& span, Span* around_out);
  Status make_instead(pinrail_thread_t* thread, const Span& span, uint32_t rights, LeftOut::Why* why_out);
  Status make(pinrail_thread_t* thread, const Span& span, uint32_t rights, LeftOut::Why* why_out);
  Status make_admitted(pinrail_thread_t* thread, pinrail_registration_t* reg, LeftOut::Why* why_out);
  Status call_registrar(pinrail_thread_t* thread, pinrail_registration_t* reg);
  bool register_without_atomics(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status register_as_asked(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status ask_on_own_page(pinrail_thread_t* thread, uint32_t rights);
  Status publish(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status publish_announced(pinrail_thread_t* thread, pinrail_announcement_t* announcement, pinrail_registration_t* reg);

  static void invalidated_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  void kill_hook(pinrail_registration_t* reg);
  void give_up_hook(pinrail_registration_t* reg, uint64_t own_references);

  const uint64_t
      memory_bytes_;  // of the machine; a mapping that is longer is registered only as far as it is asked for
  void* subscription_ = nullptr;

  Work work_;
  LeftOut left_out_;

  // The maker's alone.
  Maps maps_;
  Held held_;
  std::vector<Span> covered_;
  bool is_rescan_ = false;                      // nothing says that the range of this round has changed
  uint32_t most_rights_ = PINRAIL_RIGHTS_MASK;  // what the device grants at most
  bool has_asked_for_atomics_ = false;
  int64_t next_rescan_ms_ = 0;
};

}  // namespace pinrail::mrall

#endif
