// SPDX-License-Identifier: BSD-3-Clause
// kept.h - which kinds of memory may be kept registered, found out on a sample of each.
//
// Owns     nothing; samples are unmapped before find_kept() returns.
// Threads  all functions may run together. API context; no lock may be held while `ask` calls monitors.
//
// A kind is kept if the monitors see each event that this kernel has and that can happen to it (coverage/C1).
#ifndef PINRAIL_FRAMEWORK_MONITOR_KEPT_H
#define PINRAIL_FRAMEWORK_MONITOR_KEPT_H

#include <array>
#include <functional>
#include <string>

#include "framework/monitor/coverage.h"

namespace pinrail::monitor {

// The kinds that programs usually register, and files on disk, which are listed. The others are judged only when they
// are met.
constexpr std::array<pinrail_mapping_kind_t, 8> kUsualKinds = {
    PINRAIL_MAPPING_ANONYMOUS,        PINRAIL_MAPPING_HEAP,     PINRAIL_MAPPING_STACK,
    PINRAIL_MAPPING_SHARED_ANONYMOUS, PINRAIL_MAPPING_SYSV,     PINRAIL_MAPPING_PRIVATE_FILE,
    PINRAIL_MAPPING_SHARED_FILE,      PINRAIL_MAPPING_DISK_FILE};

struct Kept {
  std::array<uint32_t, kUsualKinds.size()> unseen{};  // PINRAIL_EVENT_* bits, for each of kUsualKinds
  std::array<bool, kUsualKinds.size()> refused{};     // by monitor_strict

  bool keeps(size_t index) const { return unseen[index] == 0 && !refused[index]; }
  bool keeps_something() const;
  // But for kinds to which something can happen that no monitor sees.
  bool keeps_everything() const;
  bool keeps_the_same(const Kept& other) const;
};

enum class Samples : uint8_t { none, real };

// Judges each of kUsualKinds. ask: returns the events that are seen in a mapping. Samples::none: ask needs only the
// mapping's kind, so no sample is mapped.
Kept find_kept(const Policy& policy, const std::function<uint32_t(const pinrail_mapping_t&)>& ask, Samples samples);

// Why the index-th of kUsualKinds is not kept, for example "no monitor sees shmat_over"; empty if it is kept.
std::string why_not(const Kept& kept, size_t index);
// All reasons, for example "anonymous, heap: no monitor sees shmat_over; shared file: no monitor sees truncate". Empty
// if all kinds are kept, except those that monitor_strict excludes.
std::string describe(const Kept& kept);

}  // namespace pinrail::monitor

#endif
