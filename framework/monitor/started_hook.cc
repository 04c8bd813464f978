// SPDX-License-Identifier: BSD-3-Clause
// The table of started monitors, and what they report. add() is start-up; the functions whose names end in _hook take
// no lock but that of the table of files. Each event arrives at report_hook() by a call from this file or from another
// one, never from its own, where a test's --wrap would not meet it; but for the second report of what has a tag.
//
// Hook     report_of_hook(), report_file_hook(), note_reported_hook(), which the program's reports call as well.
#include "framework/monitor/started_hook.h"

#include "base/sync/call_scope.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/gate.h"
#include "framework/monitor/coverage.h"
#include "framework/monitor/monitor.h"

namespace pinrail::monitor {

StartedMonitors started;
Reported marks_of_reports;

StartedMonitor* StartedMonitors::add(const pinrail_component_t& descriptor, void* context, const pinrail_host_t* host) {
  const size_t count = count_.load();
  if (count == kRoom) return nullptr;
  StartedMonitor& entry = entries_[count];
  const auto* const ops = static_cast<const pinrail_monitor_ops_t*>(descriptor.ops);
  entry.name = descriptor.name;
  entry.ops = ops;
  entry.is_named = false;
  entry.is_stopped.store(false);
  entry.events.store(0);
  entry.context = context;
  entry.host = host;
  entry.kinds = ops->kinds != 0 ? ops->kinds : uint32_t{PINRAIL_KIND_HOST};
  entry.sees.store(true);
  count_.store(count + 1);
  return &entry;
}

bool StartedMonitors::tell_again_hook() {
  bool is_any = false;
  for (const StartedMonitor& each : *this) {
    if (!each.is_for_host() || each.is_stopped.load()) continue;
    if (!each.tells_again()) return false;
    is_any = true;
  }
  return is_any;
}

StartedMonitor* StartedMonitors::find_hook(const pinrail_host_t* host) {
  for (StartedMonitor& each : *this) {
    if (each.host == host && !each.is_stopped.load()) return &each;
  }
  return nullptr;
}

// What is rounded out to pages ends in the same neighbourhoods.
static void mark_hook(uintptr_t base, size_t length) {
  marks_of_reports.mark_hook(Span::of(base, std::min(length, UINTPTR_MAX - base)));
}

// Delivers an event from the monitor with this host table, for the kinds of memory that it watches. What a monitor
// reports that is not in the table yet is the memory of its trial, which leaves no mark. Hook context.
void report_of_hook(const pinrail_host_t* host, uintptr_t base, size_t length) {
  const StartedMonitor* const monitor = started.find_hook(host);
  const deferred::CauseScope cause(monitor != nullptr ? monitor->name : nullptr);
  if (monitor != nullptr && monitor->is_for_host() && !monitor->tells_again()) mark_hook(base, length);
  report_hook(monitor != nullptr ? monitor->kinds : 0, base, length);
}

void note_reported_hook(uintptr_t base, size_t length) {
  if (!started.tell_again_hook()) mark_hook(base, length);
}

void forget_verdicts_hook(const Span& span) { coverage.forget_verdicts_hook(span); }

bool was_reported(uintptr_t base, size_t length) { return marks_of_reports.has(Span::of(base, length)); }

// Delivers an event that names a file, as one for each range of kept memory that shows it. If the event must be
// deferred, this thread may hold the lock of the table of files: all memory is reported then. Hook context.
void report_file_hook(const pinrail_file_part_t& part) {
  if (gate::is_child()) return;
  if (deferred::must_defer_hook()) return report_hook(PINRAIL_KIND_HOST, 0, UINTPTR_MAX);
  Span span;
  for (uintptr_t from = 0; coverage.files_hook().find_hook(part, from, &span); from = span.end) {
    report_hook(PINRAIL_KIND_HOST, span.base, span.length());
  }
}

}  // namespace pinrail::monitor
