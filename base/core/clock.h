// SPDX-License-Identifier: BSD-3-Clause
// clock.h - the time since the machine's start as a number.
//
// Threads  All functions may run together.
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_CLOCK_H
#define PINRAIL_BASE_CORE_CLOCK_H

#include <cstdint>
#include <ctime>

namespace pinrail {

// Nanoseconds. CLOCK_MONOTONIC_COARSE is exact to a few milliseconds, and quicker.
inline uint64_t now_ns_hook(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  if (clock_gettime(clock, &now) != 0) return 0;
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}
inline int64_t now_ms_hook() { return static_cast<int64_t>(now_ns_hook() / 1000000); }

}  // namespace pinrail

#endif
