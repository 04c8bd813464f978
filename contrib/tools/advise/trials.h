// SPDX-License-Identifier: BSD-3-Clause
// trials.h - a trace replayed through real pools with one setting after the other: what advice is measured by.
//
// Threads  one at a time.
//
// A trial's figures are those that pinrail_perf --trace FILE --registrar none prints with its setting.
#ifndef PINRAIL_TOOLS_ADVISE_TRIALS_H
#define PINRAIL_TOOLS_ADVISE_TRIALS_H

#include <string>
#include <vector>

#include "contrib/tools/advise/study.h"
#include "contrib/tools/perf/replay.h"

namespace pinrail::advise {

struct Trial {
  std::string name;     // "exact"
  tools::Pairs wanted;  // the parameters that differ from what is set
  uint64_t limit = 0;   // bytes; 0: as set
  perf::Replayed figures;

  double cost_ms(const perf::CostModel& cost) const { return cost.ms(figures.device.calls, figures.device.pages); }
};

struct Advised {
  std::string file, program;
  tools::Pairs recorded;  // what was set where it was recorded; each replay has it, unless the command line says else
  perf::Trace trace;
  perf::PoolFacts pool;
  Study study;
  std::vector<Trial> settings;  // the first: as it is set; the second: exact
  std::vector<Trial> limits;    // ascending
};

// Bytes at once, where no limit is in the way.
uint64_t most_registered(const Advised& advised);

// Reads the file, replays it with each setting and each limit, and studies it.
perf::Result try_all(const perf::Options& options, const std::string& file, Advised* advised_out);

}  // namespace pinrail::advise

#endif
