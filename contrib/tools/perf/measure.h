// SPDX-License-Identifier: BSD-3-Clause
// measure.h - times register + deregister on one or many threads.
//
// Threads  measure() makes its own, each on a core of its own as far as there are cores.
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
  const Buffers* buffers;  // threads times regions of them
  unsigned threads;
  size_t regions;          // of each thread
  uint64_t operations;     // of each thread, at most
  uint64_t time_limit_ns;  // after the first five batches; 0: none
};

struct Measured {
  pinrail_status_t status = PINRAIL_SUCCESS;  // the first that was none; the figures mean nothing then
  double ns = 0;                              // of one pair: median of batches
  double per_second = 0;                      // pairs of all threads together
  bool no_threads = false;                    // the system refused as many threads as that
};

// Warms up with one pair for each buffer, then times batches.
Measured measure(const Job& job);

// Indices below count: permutation after permutation, some thousands of them, always the same.
std::vector<uint32_t> shuffled_order(size_t count);

}  // namespace pinrail::perf

#endif
