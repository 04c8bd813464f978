// SPDX-License-Identifier: BSD-3-Clause
// measure.h - times register + deregister on one or several threads.
//
// Threads  measure() creates its threads, each on its own core while there are enough cores.
#ifndef PINRAIL_TOOLS_PERF_MEASURE_H
#define PINRAIL_TOOLS_PERF_MEASURE_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <vector>

#include "contrib/tools/perf/memory.h"

namespace pinrail::perf {

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;

struct Job {
  pinrail_mpool_t* pool;
  uint32_t flags;          // PINRAIL_FLAG_*
  const Buffers* buffers;  // `threads` times `regions` buffers
  unsigned threads;
  size_t regions;          // of each thread
  uint64_t operations;     // maximum for each thread
  uint64_t time_limit_ns;  // after the first five batches; 0: none
};

struct Measured {
  pinrail_status_t status = PINRAIL_SUCCESS;  // the first error; the numbers are invalid then
  double ns = 0;                              // nanoseconds of one pair: median of batches
  double per_second = 0;                      // pairs of all threads together
  bool no_threads = false;                    // the system refused to create so many threads
};

// Warms up with one pair for each buffer, then times batches.
Measured measure(const Job& job);

// Some thousands of indices below count: one permutation after another, the same in each run.
std::vector<uint32_t> shuffled_order(size_t count);

}  // namespace pinrail::perf

#endif
