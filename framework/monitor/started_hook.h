// SPDX-License-Identifier: BSD-3-Clause
// started_hook.h - the monitors that were started, in a table that hooks may read, and where what is reported may be
// there still.
//
// Owns     one entry for each; not the components behind them.
// Threads  add() and clear() exclude each other; all else may run at any time. Entries stay until clear(), which runs
//          at start-up and shut-down, when no monitor reports.
// Hook     find_hook(), tell_again_hook(), begin(), end(), is_for_host() and tells_again(); Reported, but for forget().
#ifndef PINRAIL_FRAMEWORK_MONITOR_STARTED_HOOK_H
#define PINRAIL_FRAMEWORK_MONITOR_STARTED_HOOK_H

#include <pinrail/component.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/core/span.h"

namespace pinrail::monitor {

// Where memory was reported and is not reported again when it is gone. It may be there still, and no event ends what is
// registered of it unasked from then on.
//
// Each neighbourhood of 2 MiB has a mark, which it shares with those 16 GiB apart; marks stay until the next start.
// seq_cst: a mark is set before the event looks for calls under way, and a call looks at it when it can be found.
class Reported {
 public:
  void mark_hook(const Span& span) {
    visit_hook(span, [this](uintptr_t at) {
      if (!marks_[at].load()) marks_[at].store(true);
      return false;
    });
  }
  // At start-up and shut-down.
  void forget() {
    for (std::atomic<bool>& mark : marks_) mark.store(false, std::memory_order_relaxed);
  }
  bool has(const Span& span) const {
    return visit_hook(span, [this](uintptr_t at) { return marks_[at].load(); });
  }

 private:
  static constexpr unsigned kShift = 21;
  static constexpr uintptr_t kMarks = 8192;

  // Calls visit(number of a mark) until it returns true; whether it has.
  template <typename Visit>
  static bool visit_hook(const Span& span, Visit&& visit) {
    if (span.base >= span.end) return false;
    const uintptr_t first = span.base >> kShift, count = ((span.end - 1) >> kShift) - first + 1;
    for (uintptr_t i = 0; i < std::min(count, kMarks); ++i) {
      if (visit((first + i) % kMarks)) return true;
    }
    return false;
  }

  std::array<std::atomic<bool>, kMarks> marks_{};
};

extern Reported marks_of_reports;  // constant-initialised, no destructor

struct StartedMonitor {
  const char* name = "";
  const pinrail_monitor_ops_t* ops = nullptr;
  void* context = nullptr;
  const pinrail_host_t* host = nullptr;
  uint32_t kinds = 0;             // PINRAIL_KIND_* bits of the memory that it watches
  bool is_named = false;          // by the parameter "monitor"
  std::atomic<bool> sees{false};  // false: it is blind or was stopped
  std::atomic<bool> is_stopped{false};
  std::atomic<uint32_t> events{0};  // events that it sees in any mapping

  bool is_for_host() const { return (kinds & PINRAIL_KIND_HOST) != 0; }
  bool tells_again() const { return (ops->flags & PINRAIL_MONITOR_AFTERWARDS) != 0; }
};

class StartedMonitors {
 public:
  static constexpr size_t kRoom = 16;

  // Adds an entry and returns it; NULL: the table is full.
  StartedMonitor* add(const pinrail_component_t& descriptor, void* context, const pinrail_host_t* host);
  void clear() {
    count_.store(0);
    marks_of_reports.forget();
  }

  StartedMonitor* begin() { return entries_.data(); }
  StartedMonitor* end() { return entries_.data() + count_.load(); }

  // Whether host memory that the program reports is reported again when it is gone: all monitors at work do so, and the
  // program has to where none of them sees its event.
  bool tell_again_hook();
  // The monitor with this host table; NULL: it is not in the table (yet), or was stopped.
  StartedMonitor* find_hook(const pinrail_host_t* host);

 private:
  std::array<StartedMonitor, kRoom> entries_{};
  std::atomic<size_t> count_{0};  // seq_cst: an entry is filled before it is counted
};

extern StartedMonitors started;  // constant-initialised, no destructor

}  // namespace pinrail::monitor

#endif
