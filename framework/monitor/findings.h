// SPDX-License-Identifier: BSD-3-Clause
// findings.h - what the started monitors see, which kinds of memory are kept with them, and that in words. monitor.h
// has the functions that tell it: works(), kept_at(), covers() and others.
//
// Owns     the findings. A published object never changes; it stays until the next start(), because a reader may still
//          use it.
// Threads  set_policy() and forget_findings() at start-up; those whose names end in _locked under findings_mutex; the
//          others at any time.
// Context  API or start-up; none may run in a hook. No function reads a registration; kept_without() calls monitors.
//
// A kind is kept if the monitors see each event that this kernel has and that can happen to it (coverage/C1), found out
// on a sample of each, which is unmapped before kept_without() returns.
#ifndef PINRAIL_FRAMEWORK_MONITOR_FINDINGS_H
#define PINRAIL_FRAMEWORK_MONITOR_FINDINGS_H

#include <utility>
#include <vector>

#include "base/sync/lock.h"
#include "framework/monitor/coverage.h"
#include "framework/monitor/started_hook.h"

namespace pinrail::monitor {

// The kinds that programs usually register, and files on disk, which are listed. The others are judged only when they
// are met.
constexpr std::array<pinrail_mapping_kind_t, 8> kUsualKinds = {
    PINRAIL_MAPPING_ANONYMOUS,        PINRAIL_MAPPING_HEAP,     PINRAIL_MAPPING_STACK,
    PINRAIL_MAPPING_SHARED_ANONYMOUS, PINRAIL_MAPPING_SYSV,     PINRAIL_MAPPING_PRIVATE_FILE,
    PINRAIL_MAPPING_SHARED_FILE,      PINRAIL_MAPPING_DISK_FILE};

struct Kept {
  std::array<Judgement, kUsualKinds.size()> kinds{};

  bool keeps_something() const;
  // But for kinds to which something can happen that no monitor sees.
  bool keeps_everything() const;
  bool keeps_the_same(const Kept& other) const;
};

// All reasons, for example "anonymous, heap: no monitor sees shmat_over; shared file: no monitor sees truncate". Empty
// if all kinds are kept, except those that monitor_strict excludes.
std::string describe(const Kept& kept);

// The monitors that are open but not at work, with the reason.
using Idle = std::vector<std::pair<std::string, std::string>>;

extern Mutex findings_mutex;  // guards the publication of findings

// Start-up. verbosity: the level up to which lines are logged.
void set_policy(const Policy& policy, const std::atomic<int64_t>* verbosity);
// Logs a line.
void say(const std::string& line);

// Calls visit(monitor) for each monitor of host memory that sees events.
template <typename Visit>
void for_each_seeing(Visit visit) {
  for (StartedMonitor& monitor : started) {
    if (monitor.is_for_host() && monitor.sees.load()) visit(monitor);
  }
}
// Whether holds(monitor) is true for one of them.
template <typename Predicate>
bool any_seeing(Predicate holds) {
  bool any = false;
  for_each_seeing([&](const StartedMonitor& monitor) { any = any || holds(monitor); });
  return any;
}
inline bool sees_any_caller(const pinrail_monitor_ops_t& ops) { return (ops.flags & PINRAIL_MONITOR_ANY_CALLER) != 0; }
inline uint32_t read_events_seen(const StartedMonitor& monitor) {
  return monitor.ops->sees == nullptr ? 0 : monitor.ops->sees(monitor.context);
}
bool any_sees();

// Whether an allocator of the process makes raw system calls: then its events count only if a monitor sees any
// caller's.
bool has_raw_callers();
// False: it was noted before.
bool note_raw_callers();

// The kinds that would be kept without the given monitor (NULL: with all monitors). Maps samples.
Kept kept_without(const StartedMonitor* without);
// Restarts the coverage with the monitors that still see events.
void start_coverage();

// Publishes new findings; readers take no lock. troubles: why monitors fail or are incomplete.
void publish_findings_locked(const Kept& kept, bool any_sees, const std::string& troubles, Idle idle)
    REQUIRES(findings_mutex);
// The same after the set of seen events changed. Without memory nothing is kept any more. Throws nothing.
void refresh_findings_locked(const char* troubles) REQUIRES(findings_mutex);

// Nothing is kept any more; the findings stay, because readers may use them. Shut-down.
void keep_nothing();
// Forgets the findings of the previous start().
void forget_findings();
// The same in a forked child; takes no lock.
void fork_reinit_findings();

}  // namespace pinrail::monitor

#endif
