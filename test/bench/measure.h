// SPDX-License-Identifier: BSD-3-Clause
// measure.h - clocks, the memory that this process has touched, what the zero-cost registrars count, and the way out of
// a benchmark program that cannot go on: a figure that is wrong is worse than none.
#ifndef PINRAIL_TEST_BENCH_MEASURE_H
#define PINRAIL_TEST_BENCH_MEASURE_H

#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const char* what, const char* which = "") {
  fprintf(stderr, "bench: %s%s%s\n", what, *which == 0 ? "" : ": ", which);
  std::_Exit(3);
}

// Load and store instead of an atomic addition: exact with one thread; with more some are lost, and only "none" is
// asked there.
class Calls {
 public:
  void count_one() { counted_.store(counted() + 1, std::memory_order_relaxed); }
  uint64_t counted() const { return counted_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> counted_{0};
};

inline Calls& register_calls() {
  static Calls calls;
  return calls;
}

// RssAnon and RssShmem of /proc/self/status, in bytes: heap and anonymous mappings, private and shared.
inline double resident_bytes() {
  FILE* const file = fopen("/proc/self/status", "re");
  if (file == nullptr) fail("/proc/self/status cannot be read");
  double kilobytes = 0;
  char line[256];
  while (fgets(line, sizeof(line), file) != nullptr)
    if (strncmp(line, "RssAnon:", 8) == 0 || strncmp(line, "RssShmem:", 9) == 0)
      kilobytes += strtod(strchr(line, ':') + 1, nullptr);
  fclose(file);
  return kilobytes * 1024;
}

}  // namespace pinrail::bench

#endif
