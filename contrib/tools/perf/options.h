// SPDX-License-Identifier: BSD-3-Clause
// options.h - the command line of pinrail_perf.
#ifndef PINRAIL_TOOLS_PERF_OPTIONS_H
#define PINRAIL_TOOLS_PERF_OPTIONS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "contrib/tools/common/mca_options.h"
#include "contrib/tools/perf/result.h"

namespace pinrail::perf {

enum class Action { table, replay, help, version };

struct Options {
  Action action = Action::table;
  tools::McaOptions mca;
  std::string pool, registrar;  // empty: the best one
  std::vector<size_t> sizes = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20, 2u << 20, 4u << 20, 16u << 20};
  size_t regions = 1;  // buffers of one thread
  unsigned threads = 1;
  uint64_t iterations = 0;  // operations of one thread; 0: as many as fit into the time of a row
  std::string trace;
  bool json = false;
};

// A message names the option and the value.
Result parse_options(int argc, char* const* argv, Options* options_out);

// The text of --help.
extern const char kHelp[];

}  // namespace pinrail::perf

#endif
