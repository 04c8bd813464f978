// SPDX-License-Identifier: BSD-3-Clause
// recorder.h - what one pool shows of itself: counters, and its last events in a ring (pinrail/figures.h).
//
// Owns     the memory that pinrail/figures.h describes: a sealed file in memory, or, where none can be had, memory of
//          this process alone. What calls count is in it, too, by PoolCounts.
// Threads  all functions may run together; start() comes before all others.
// Hook     record_hook(), recorded_hook(), now_hook() and what they call.
//
// recorder/J1  An event is read whole or not at all. A slot's `state` names the event that is complete in it; it
//     is kBusy while one is written. Fields are stored with release and loaded with acquire, so that a reader that sees
//     a field of a later event sees that the slot was busy, too.
// recorder/J2  A thread writes a slot only if it has moved `events` past it and found the slot complete before: no
//     two write one slot. If a thread was stopped while it wrote there, events are dropped until it has finished.
// recorder/J3  Nothing of the file but its figures can be read, and none of it can be written, by another process.
#ifndef PINRAIL_FRAMEWORK_MPOOL_RECORDER_H
#define PINRAIL_FRAMEWORK_MPOOL_RECORDER_H

#include <pinrail/figures.h>

#include <ctime>
#include <string>

#include "base/core/kernel.h"
#include "base/core/status.h"
#include "base/hit/pool_counts.h"
#include "base/sync/own_file.h"

namespace pinrail::mpool {

class Recorder {
 public:
  ~Recorder();  // not in a forked child

  // events: how many are kept, rounded up to a power of two; 0: none. counts gets its memory. OUT_OF_RESOURCE: no
  // memory.
  Status start(uint64_t events, PoolCounts* counts);
  // The pool was made: other processes may look.
  void show(const std::string& pool, const std::string& registrar, const char* monitors,
            const pinrail_mpool_stats_t& limits);

  bool has_events() const { return figures_ != nullptr && figures_->ring_count != 0; }
  // How many events were recorded.
  uint64_t recorded_hook() const { return __atomic_load_n(&figures_->events, __ATOMIC_ACQUIRE); }
  // number and size of the event need not be set; time_ns 0: now. cause: what call its memory went away by; NULL: none.
  void record_hook(const pinrail_mpool_event_t& event, const char* cause);
  // A call of the registrar took so long.
  void note_call(uint64_t ns);
  // What only a walk over the registrations tells, for a process that has rung the bell.
  void show_use(const pinrail_mpool_stats_t& stats);
  const uint32_t* bell() const { return &figures_->bell; }
  // Copies an event; not if no events are kept. False: there is no such event any more, or it is being written.
  bool read(uint64_t number, pinrail_mpool_event_t* event_out) const;
  // The number of the oldest one that is kept.
  uint64_t oldest() const;

  // The time of events and calls is exact from now on, and not that of the last tick, a few milliseconds ago.
  void use_exact_clock() { clock_ = CLOCK_MONOTONIC; }
  // Nanoseconds; a vDSO call that reads a page of memory.
  uint64_t now_hook() const { return now_ns_hook(clock_); }

 private:
  static constexpr uint64_t kBusy = UINT64_MAX;

  bool map(uint64_t bytes);
  pinrail_figures_event_t* take_slot_hook(uint64_t* number_out);

  pinrail_figures_t* figures_ = nullptr;
  pinrail_figures_event_t* ring_ = nullptr;
  uint64_t bytes_ = 0;
  clockid_t clock_ = CLOCK_MONOTONIC_COARSE;
  OwnFile file_;
};

}  // namespace pinrail::mpool

#endif
