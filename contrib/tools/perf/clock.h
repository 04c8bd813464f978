// SPDX-License-Identifier: BSD-3-Clause
// clock.h - CLOCK_MONOTONIC in nanoseconds.
#ifndef PINRAIL_TOOLS_PERF_CLOCK_H
#define PINRAIL_TOOLS_PERF_CLOCK_H

#include <time.h>

#include <cstdint>

namespace pinrail::perf {

inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace pinrail::perf

#endif
