// SPDX-License-Identifier: BSD-3-Clause
// options.h - the command line of pinrail_perf.
#ifndef PINRAIL_TOOLS_PERF_OPTIONS_H
#define PINRAIL_TOOLS_PERF_OPTIONS_H

#include <cstddef>

#include "contrib/tools/common/command_line.h"

namespace pinrail::perf {

struct Options {
  tools::Pairs mca;
  std::string pool, registrar;  // empty: the usable one of highest priority
  std::vector<size_t> sizes = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20, 2u << 20, 4u << 20, 16u << 20};
  size_t regions = 1;  // buffers of one thread
  unsigned threads = 1;
  uint64_t iterations = 0;  // pairs of one thread; 0: as many as the time limit of a row allows
  std::string trace;        // empty: measure the table
  std::string scenario;     // empty: none
  bool sizes_given = false;
  bool json = false;
};

// Reads the command line; returns as CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

}  // namespace pinrail::perf

#endif
