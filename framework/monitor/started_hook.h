// SPDX-License-Identifier: BSD-3-Clause
// started_hook.h - the monitors that were started, in a table that hooks may read.
//
// Owns     one entry for each; not the components behind them.
// Threads  add() and clear() exclude each other; all else may run at any time. Entries stay until clear(), which runs
//          at start-up and shut-down, when no monitor reports.
// Hook     find_hook(), begin() and end().
#ifndef PINRAIL_FRAMEWORK_MONITOR_STARTED_HOOK_H
#define PINRAIL_FRAMEWORK_MONITOR_STARTED_HOOK_H

#include <pinrail/component.h>

#include <array>
#include <atomic>

namespace pinrail::monitor {

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
};

class StartedMonitors {
 public:
  static constexpr size_t kRoom = 16;

  constexpr StartedMonitors() = default;

  // Adds an entry and returns it; NULL: the table is full.
  StartedMonitor* add(const pinrail_component_t& descriptor, void* context, const pinrail_host_t* host);
  void clear() { count_.store(0); }

  StartedMonitor* begin() { return entries_.data(); }
  StartedMonitor* end() { return entries_.data() + count_.load(); }

  // The monitor with this host table; NULL: it is not in the table (yet), or was stopped.
  StartedMonitor* find_hook(const pinrail_host_t* host);

 private:
  std::array<StartedMonitor, kRoom> entries_{};
  std::atomic<size_t> count_{0};  // seq_cst: an entry is filled before it is counted
};

extern StartedMonitors started;  // constant-initialised, no destructor

}  // namespace pinrail::monitor

#endif
