// SPDX-License-Identifier: BSD-3-Clause
// monitors.h - finds out by trial which monitor sees which memory event on this machine.
//
// Each event of memory_events.h is fired on cached memory, in a child process. A second child fires it while a filter
// refuses the event's system calls: a registration that is gone then was invalidated before the kernel acted.
//
// Threads  one thread, before pinrail_init(): children are forked, and would inherit a parent's patches.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_MONITORS_H
#define PINRAIL_CONTRIB_TOOLS_INFO_MONITORS_H

#include <pinrail/pinrail.h>

#include <ostream>
#include <string>
#include <vector>

#include "contrib/tools/common/memory_events.h"
#include "contrib/tools/info/snapshot.h"

namespace pinrail::info {

// What happened to the cached registration. The values are the children's exit statuses.
enum class Outcome : uint8_t {
  before,      // invalidated before the kernel acted
  after,       // invalidated, but not before
  not_seen,    // still cached although its pages were replaced: stale
  kept,        // still cached, correctly: its pages are the same
  dropped,     // invalidated although its pages are the same: harmless, costs a registration
  not_cached,  // the pool does not cache such memory under this monitor
  impossible,  // this kernel or libc lacks the event
  broken       // the child failed
};

struct MonitorColumn {
  std::string name;               // a component, or "default": the monitors of the present settings
  std::string why_not;            // empty: it works here
  std::vector<Outcome> outcomes;  // for each of memory_events(); empty if it does not work
};

// A kind of memory, and why it is not kept with the present settings; empty if it is.
struct KeptKind {
  std::string name, why_not;
};

struct MonitorTable {
  std::vector<MonitorColumn> columns;
  std::string at_work;         // names of the monitors of the last column, separated by commas
  std::vector<KeptKind> kept;  // kinds of memory with the present settings
};

// Measures a column for each monitor component except "external", and one for the default. False: Pinrail does not
// start with these settings; why_out receives its message. Throws what says so if no child process can be made.
bool measure_monitors(const std::vector<pinrail_setting_t>& settings, MonitorTable* table_out, std::string* why_out);

// The same with the column for the default alone.
bool measure_default(const std::vector<pinrail_setting_t>& settings, MonitorTable* table_out, std::string* why_out);

// "before", "after", "not seen", ...
const char* outcome_name(Outcome outcome);

void print_monitors(Format format, const MonitorTable& table, std::ostream& out);

// A seccomp filter for a trial's child. From now on munmap, mmap with MAP_FIXED and all other calls that unmap or
// replace memory fail with EPERM: on all threads and for ever. False: the kernel or this architecture has no such
// filters.
bool refuse_memory_calls();

}  // namespace pinrail::info

#endif
