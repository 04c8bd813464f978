// SPDX-License-Identifier: BSD-3-Clause
// options.h - what one run of a benchmark program measures. test/bench/run writes these command lines.
#ifndef PINRAIL_TEST_BENCH_OPTIONS_H
#define PINRAIL_TEST_BENCH_OPTIONS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "test/bench/work.h"

namespace pinrail::bench {

struct Options {
  Shape shape = Shape::aligned;
  uint32_t regions = 1;
  size_t length = 64 << 10;                // bytes of a region; odd_sizes has its own
  std::vector<std::string> rows{"pairs"};  // see rows.h
  std::vector<unsigned> threads{1, 2};     // for the rows of threads
  uint32_t limit = 0;                      // most registrations that the cache may keep; 0: as the library sets it
  double seconds = 0.05;                   // of one sample
  int repetitions = 3;                     // samples of each row
  int tries = 20;                          // for a sample of more than one thread, until the machine is quiet
  std::string monitor;                     // Pinrail's parameter of that name
};

// Takes out of argv what is ours and leaves the rest to Google Benchmark.
Options read_options(int* argc, char** argv);

}  // namespace pinrail::bench

#endif
