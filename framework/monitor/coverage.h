// SPDX-License-Identifier: BSD-3-Clause
// coverage.h - whether the monitors together see every event that can make a registration of a range stale.
//
// Owns     the verdicts on mappings.
// Threads  covers(), forget_hook() and forget_verdicts_hook() may run at any time. start() runs at start-up, or while
//          nothing is cached.
// Hook     forget_hook() and forget_verdicts_hook(). Everything else is API context.
//
// coverage/C1  covers() returns true only if, for each mapping of the range, the monitors together see every event
//     that can happen to that kind of mapping on this kernel, except the events that monitor_never excludes. What is
//     not mapped, or cannot be read, is not covered, unless monitors report every event by address.
//
// A verdict holds for each part of its mapping until an event touches that part; then the mapping there is judged again
// (known_mappings_hook/K1, known_mappings_hook/K2).
#ifndef PINRAIL_FRAMEWORK_MONITOR_COVERAGE_H
#define PINRAIL_FRAMEWORK_MONITOR_COVERAGE_H

#include <pinrail/component.h>

#include <string>
#include <string_view>

#include "base/core/status.h"
#include "framework/monitor/known_mappings_hook.h"

namespace pinrail::monitor {

// Events that no monitor of ours sees.
constexpr uint32_t kSeenByNone = PINRAIL_EVENT_DIRECT_WRITE | PINRAIL_EVENT_DRIVER_MOVE;

// Which events count, and which memory is refused.
struct Policy {
  uint32_t possible = PINRAIL_EVENTS_ALL;  // events that this kernel has and monitor_never does not exclude
  bool is_strict = false;                  // refuse memory whose pages another process can remove (E8)
};

// Whether memory of a kind may be kept, and why not.
struct Judgement {
  uint32_t unseen = 0;      // PINRAIL_EVENT_* bits: what can happen to it and no monitor sees
  bool is_refused = false;  // by monitor_strict

  bool is_kept() const { return unseen == 0 && !is_refused; }
};
// seen: the events that the monitors together see there.
Judgement judge(const Policy& policy, pinrail_mapping_kind_t kind, uint32_t seen);
// For example "no monitor sees shmat_over"; empty if it is kept.
std::string why_not(const Judgement& judgement);

// Returns the events (PINRAIL_EVENT_*) that can make registrations in such a mapping stale.
uint32_t events_of(pinrail_mapping_kind_t kind);
// Whether events can name the mapping by its file or segment.
bool is_of_file(pinrail_mapping_kind_t kind);
// E8: whether no other process can remove the mapping's pages.
bool is_private_memory(pinrail_mapping_kind_t kind);
// Returns the events that this kernel can cause; tries the newer ones on a page of its own. Start-up.
uint32_t events_of_kernel();
// Converts "guard_install,punch_hole" to event bits. BAD_PARAM: unknown_out receives the unknown name.
Status parse_events(std::string_view list, uint32_t* events_out, std::string* unknown_out);
// Converts event bits to names, for messages.
std::string name_events(uint32_t events);

class Coverage {
 public:
  using FindMapping = bool (*)(uintptr_t at, pinrail_mapping_t* mapping_out);  // find_mapping(), or a test's substitute
  using EventsSeen = uint32_t (*)(const pinrail_mapping_t& mapping);  // events that the monitors together see there
  using LogLine = void (*)(const std::string& line);                  // logs a mapping that is not covered, and why

  constexpr Coverage(FindMapping find, EventsSeen ask, LogLine say)
      : find_mapping_(find), events_seen_(ask), log_line_(say) {}

  // Sets the policy and forgets all verdicts. reported: the events (PINRAIL_EVENT_*) that monitors report by
  // address in every mapping, also those that another process causes. If that is PINRAIL_EVENTS_ALL, covers() returns
  // true without reading a mapping. is_watched: a monitor begins to watch a mapping when it is asked what it sees
  // there.
  void start(const Policy& policy, uint32_t reported, bool is_watched = false);
  // Forgets verdicts that the span touches, and what it holds of mappings of files. These first: a verdict that is
  // found afterwards is a later one, and add() came before it (known_mappings_hook/F1).
  void forget_hook(const Span& span) {
    files_.forget_hook(span);
    known_.forget_hook(span);
  }
  // The same of verdicts alone, for an event that ends the registrations of one pool: events of files must find those
  // of the others.
  void forget_verdicts_hook(const Span& span) { known_.forget_hook(span); }
  bool looks_at_nothing() const { return covers_everything_.load(); }
  // Whether registrations of the span may be kept. May read /proc; no lock may be held.
  bool covers(const Span& span);

  // The largest part of `most` around the span in which all is writable memory without a file, of this process alone,
  // and covered; the span if it is other memory itself. May read /proc; no lock may be held.
  Span private_around(const Span& span, const Span& most);

  const KnownMappings& known() const { return known_; }
  const KeptFiles& files_hook() const { return files_; }

 private:
  Verdict verdict_on(uintptr_t at);
  Verdict find_verdict(uintptr_t at);
  bool is_covered(const pinrail_mapping_t& mapping) const;
  bool is_there_still(uintptr_t at, pinrail_mapping_t* mapping) const;
  bool has_place(const pinrail_mapping_t& mapping);

  const FindMapping find_mapping_;
  const EventsSeen events_seen_;
  const LogLine log_line_;
  std::atomic<bool> covers_everything_{false};
  std::atomic<uint32_t> possible_{0};
  std::atomic<bool> is_strict_{false};
  std::atomic<bool> is_watched_{false};
  KnownMappings known_;
  KeptFiles files_;
};

extern Coverage coverage;  // of the process; constant-initialised, for hooks that run before main()

}  // namespace pinrail::monitor

#endif
