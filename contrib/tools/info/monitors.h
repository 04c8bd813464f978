// SPDX-License-Identifier: BSD-3-Clause
// monitors.h - which monitor sees what on this machine, found out by doing it.
//
// Each event of memory_events.h is fired on a registration that is cached, in a process of its own, once with the
// system calls that it consists of refused: a registration that is gone then was given up before the kernel acted.
//
// Threads  one, and Pinrail not started: children are forked, and patches of a parent would be theirs too.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_MONITORS_H
#define PINRAIL_CONTRIB_TOOLS_INFO_MONITORS_H

#include <pinrail/pinrail.h>

#include <ostream>
#include <string>
#include <vector>

#include "contrib/tools/common/memory_events.h"
#include "contrib/tools/info/options.h"

namespace pinrail::info {

// What became of the cached registration. Values are the children's exit statuses.
enum class Outcome : uint8_t {
  before,      // given up before the kernel acted
  after,       // given up, but not before
  not_seen,    // it still answers, and its pages are others: stale
  kept,        // it still answers, as it should: its pages are the same
  dropped,     // given up although its pages are the same: costs a registration, harms nobody
  not_cached,  // the pool does not keep such memory under this monitor
  impossible,  // this kernel or libc cannot do it
  broken       // the child did not say
};

struct MonitorColumn {
  std::string name;               // a component, or "default": what the parameter says
  std::string why_not;            // empty: it works here
  std::vector<Outcome> outcomes;  // for each of memory_events(); empty if it does not work
};

// A kind of memory, and why it is not kept with the settings as they are; empty: it is.
struct KeptKind {
  std::string name, why_not;
};

struct MonitorTable {
  std::vector<MonitorColumn> columns;
  std::string at_work;         // monitors of the last column, with commas
  std::vector<KeptKind> kept;  // the same
};

// One for each monitor component alone but "external", and one for the default. False, with what Pinrail said: it does
// not start with these settings.
bool measure_monitors(const std::vector<pinrail_setting_t>& settings, MonitorTable* table_out, std::string* why_out);

// "before", "after", "not seen", ...
const char* outcome_name(Outcome outcome);

void print_monitors(Format format, const MonitorTable& table, std::ostream& out);

}  // namespace pinrail::info

#endif
