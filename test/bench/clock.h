// SPDX-License-Identifier: BSD-3-Clause
// clock.h - two clocks: nanoseconds, and the processor's ticks, which cost less to read.
#ifndef PINRAIL_TEST_BENCH_CLOCK_H
#define PINRAIL_TEST_BENCH_CLOCK_H

#include <time.h>

#include <cstdint>

namespace pinrail::bench {

inline double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<uint64_t>(now_ns());
#endif
}

// Nanoseconds of one tick, measured over 20 ms.
double ns_per_tick();

}  // namespace pinrail::bench

#endif
