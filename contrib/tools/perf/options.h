// SPDX-License-Identifier: BSD-3-Clause
// options.h - the command line of pinrail_perf.
#ifndef PINRAIL_TOOLS_PERF_OPTIONS_H
#define PINRAIL_TOOLS_PERF_OPTIONS_H

#include <cstddef>

#include "contrib/tools/common/program.h"
#include "contrib/tools/perf/replay_memory.h"

namespace pinrail::perf {

// What registering costs on a device that is not here.
struct CostModel {
  double call_ns = 8000, page_ns = 69.5;

  double ms(uint64_t calls, uint64_t pages) const {
    return (static_cast<double>(calls) * call_ns + static_cast<double>(pages) * page_ns) / 1e6;
  }
};

struct Options {
  tools::Pairs mca;
  std::string pool, registrar;  // empty: the usable one of highest priority
  std::vector<size_t> sizes = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20, 2u << 20, 4u << 20, 16u << 20};
  size_t regions = 1;  // buffers of one thread
  unsigned threads = 1;
  uint64_t iterations = 0;          // pairs of one thread; 0: as many as the time limit of a row allows
  std::vector<std::string> traces;  // empty: measure the table
  std::string scenario;             // empty: none
  CostModel cost;
  size_t limit = 0;  // bytes that a replay may keep registered; 0: as parameters say
  Touch touch = Touch::at_birth;
  bool exact = false;    // a replay registers what is asked for, and nothing else
  bool compare = false;  // each trace is replayed a second time, exact
  bool sizes_given = false;
  bool json = false;
  bool doctor = false;
};

// "8000,69.5": nanoseconds of a call, and of each page beside. Returns "", or a clause that names the fault.
std::string take_cost(const std::string& typed, CostModel* cost);

// Reads the command line; returns as CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

}  // namespace pinrail::perf

#endif
