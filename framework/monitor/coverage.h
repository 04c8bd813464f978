// SPDX-License-Identifier: BSD-3-Clause
// coverage.h - whether all that can make a registration of a range stale is seen by somebody.
//
// Owns     the verdicts on mappings.
// Threads  covers(), forget_hook(): any time. start(): start-up, or when nothing is cached.
// Hook     forget_hook().
//
// coverage/C1  covers() says yes only if for each mapping of the range the monitors together see every event that can
//     happen to that kind of mapping on this kernel, but for those that the administrator said never happen.
// coverage/C2  A verdict holds until an event touches its mapping; then the mapping is looked at again
//     (known_mappings_hook/K1, known_mappings_hook/K2).
#ifndef PINRAIL_FRAMEWORK_MONITOR_COVERAGE_H
#define PINRAIL_FRAMEWORK_MONITOR_COVERAGE_H

#include <pinrail/component.h>

#include <string>
#include <string_view>

#include "base/core/status.h"
#include "framework/monitor/known_mappings_hook.h"

namespace pinrail::monitor {

// What stays out of consideration, and what is not believed.
struct Policy {
  uint32_t possible = PINRAIL_EVENTS_ALL;  // events that this kernel has, and that may happen
  bool is_strict = false;                  // what another process can cut or empty is refused (E8)
};

// The events that can make registrations in such a mapping stale.
uint32_t events_of(pinrail_mapping_kind_t kind);
// E8: whether no other process can take its pages away.
bool is_private_memory(pinrail_mapping_kind_t kind);
// Those that this kernel has at all: tried on a page of its own.
uint32_t events_of_kernel();
// "guard_install,punch_hole" to bits. BAD_PARAM and the name that is none.
Status parse_events(std::string_view list, uint32_t* events_out, std::string* unknown_out);
// Bits to names, for people.
std::string name_events(uint32_t events);

class Coverage {
 public:
  using Find = bool (*)(uintptr_t at, pinrail_mapping_t* mapping_out);  // find_mapping, or a test's
  using Ask = uint32_t (*)(const pinrail_mapping_t& mapping);           // what the monitors see there, all together
  using Say = void (*)(const std::string& line);                        // a mapping that is not covered, and why

  constexpr Coverage(Find find, Ask ask, Say say) : find_(find), ask_(ask), say_(say) {}

  // everywhere: what the monitors see in any mapping; is_all: and none of them has more to say of a single one. Then
  // nothing needs to be looked at.
  void start(const Policy& policy, uint32_t everywhere, bool is_all);
  void forget_hook(const Span& span) { known_.forget_hook(span); }
  bool covers(const Span& span);

  const KnownMappings& known() const { return known_; }

 private:
  Verdict look(uintptr_t at);
  bool judge(const pinrail_mapping_t& mapping) const;

  const Find find_;
  const Ask ask_;
  const Say say_;
  std::atomic<bool> covers_everything_{false};
  std::atomic<uint32_t> possible_{0};
  std::atomic<bool> is_strict_{false};
  KnownMappings known_;
};

extern Coverage coverage;  // of the process; constant-initialised, as the subscriptions are

}  // namespace pinrail::monitor

#endif
