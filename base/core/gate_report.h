// SPDX-License-Identifier: BSD-3-Clause
// gate_report.h - how monitor/uffd is asked whether events are under way in the kernel (base/sync/gate.h).
//
// An extension of the host table; it is not installed. Without it the monitor does not start.
#ifndef PINRAIL_BASE_CORE_GATE_REPORT_H
#define PINRAIL_BASE_CORE_GATE_REPORT_H

#include <cstddef>
#include <cstdint>

struct pinrail_gate_report_t {
  size_t size;
  // From now on each register and find calls is_quiet(arg), on any thread, until it returns 1: no event is under way.
  // is_quiet NULL: ends that. Start-up and shut-down of the monitor.
  void (*ask_first)(int (*is_quiet)(void* arg), void* arg);
};

namespace pinrail::gate_report {
constexpr char kName[] = "gate_report";
constexpr uint32_t kVersion = 1;
}  // namespace pinrail::gate_report

#endif
