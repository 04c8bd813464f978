// SPDX-License-Identifier: BSD-3-Clause
// replays.h - replays of one or more traces, each in a pool of its own, and what they have in common.
//
// Threads  one at a time.
#ifndef PINRAIL_TOOLS_PERF_REPLAYS_H
#define PINRAIL_TOOLS_PERF_REPLAYS_H

#include <optional>
#include <string>
#include <vector>

#include "contrib/tools/perf/replay.h"

namespace pinrail::perf {

struct ReplayedTrace {
  std::string trace, program;  // the file; from its header
  PoolFacts pool;
  Replayed figures;
  std::optional<Replayed> exact;  // of the second, exact replay

  // The figure divided by that of the exact replay; 0 if there is none.
  double cost_ratio(const CostModel& cost) const;
  double time_ratio() const;
  bool is_good() const { return figures.errors == 0 && (!exact || exact->errors == 0) && pool.why_not_kept.empty(); }
};

// Geometric means over all traces; 0 where one of the figures is 0.
struct Means {
  double cost_ms, register_ms, cost_ratio, time_ratio;
};

Means means_of(const CostModel& cost, const std::vector<ReplayedTrace>& replayed);

// Replays one in a pool of its own. Bad if its memory cannot be mapped.
Result replay_trace(const Options& options, const Trace& trace, PoolFacts* pool_out, Replayed* figures_out);

// Replays the traces in their order. Bad if one cannot be read, or its memory cannot be mapped.
Result replay_all(const Options& options, std::vector<ReplayedTrace>* replayed_out);

}  // namespace pinrail::perf

#endif
