// SPDX-License-Identifier: BSD-3-Clause
// calls.h - what the zero-cost registrars do: count, so that a row can tell hits from misses, and nothing else.
#ifndef PINRAIL_TEST_BENCH_CALLS_H
#define PINRAIL_TEST_BENCH_CALLS_H

#include <atomic>
#include <cstdint>

namespace pinrail::bench {

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

}  // namespace pinrail::bench

#endif
