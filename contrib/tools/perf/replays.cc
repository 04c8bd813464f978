// SPDX-License-Identifier: BSD-3-Clause
// replays.cc - replays of one or more traces.
#include "contrib/tools/perf/replays.h"

#include <cmath>

namespace pinrail::perf {

namespace {

double cost_of(const CostModel& cost, const Replayed& figures) {
  return cost.ms(figures.device.calls, figures.device.pages);
}

double time_of(const Replayed& figures) { return static_cast<double>(figures.device.register_ns) / 1e6; }

double ratio(double one, double other) { return other > 0 ? one / other : 0; }

template <typename Figure>
double mean(const std::vector<ReplayedTrace>& replayed, Figure figure) {
  double sum = 0;
  for (const ReplayedTrace& each : replayed) sum += std::log(figure(each));
  return std::exp(sum / static_cast<double>(replayed.size()));  // 0 if a figure is 0
}

Result replay_file(const Options& options, const std::string& file, ReplayedTrace* replayed) {
  Trace trace;
  Result read = read_trace(file, &trace);
  if (!read.ok()) return read;
  replayed->trace = file;
  replayed->program = trace.program;
  Result ran = replay_trace(options, trace, &replayed->pool, &replayed->figures);
  if (ran.ok() && options.compare) {
    Options exactly = options;
    exactly.exact = true;
    PoolFacts pool;
    ran = replay_trace(exactly, trace, &pool, &replayed->exact.emplace());
  }
  return ran.ok() ? Result::good() : Result::bad("trace " + file + ": " + ran.why());
}

}  // namespace

double ReplayedTrace::cost_ratio(const CostModel& cost) const {
  return exact ? ratio(cost_of(cost, figures), cost_of(cost, *exact)) : 0;
}

double ReplayedTrace::time_ratio() const { return exact ? ratio(time_of(figures), time_of(*exact)) : 0; }

Means means_of(const CostModel& cost, const std::vector<ReplayedTrace>& replayed) {
  return {mean(replayed, [&](const ReplayedTrace& each) { return cost_of(cost, each.figures); }),
          mean(replayed, [&](const ReplayedTrace& each) { return time_of(each.figures); }),
          mean(replayed, [&](const ReplayedTrace& each) { return each.cost_ratio(cost); }),
          mean(replayed, [&](const ReplayedTrace& each) { return each.time_ratio(); })};
}

// Adds the last check: a pool whose registrations are released can be destroyed.
Result replay_trace(const Options& options, const Trace& trace, PoolFacts* pool_out, Replayed* figures_out) {
  Session session;
  const Result opened = session.open(options);
  if (!opened.ok()) return opened;
  *pool_out = session.facts();
  Errors errors;
  Replay replay(session, options.touch, &errors);
  const Result ran = replay.run(trace);
  if (!ran.ok()) return ran;
  const Result closed = session.close();
  if (!closed.ok()) errors.add(closed.why());
  *figures_out = replay.figures();
  figures_out->errors = errors.count();
  return Result::good();
}

Result replay_all(const Options& options, std::vector<ReplayedTrace>* replayed_out) {
  for (const std::string& file : options.traces) {
    const Result ran = replay_file(options, file, &replayed_out->emplace_back());
    if (!ran.ok()) return ran;
  }
  return Result::good();
}

}  // namespace pinrail::perf
