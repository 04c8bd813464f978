// SPDX-License-Identifier: BSD-3-Clause
// trials.cc - a trace replayed with one setting after the other.
#include "contrib/tools/advise/trials.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "contrib/tools/perf/basics.h"

namespace pinrail::advise {

namespace {

constexpr const char* kNoLimit = "no limit";

// Settings to try beside what is set, as far as this library has the parameters.
struct Candidate {
  const char* name;
  tools::Pairs wanted;
};
std::vector<Candidate> candidates() {
  return {{"exact", {{"mpool_grdma_extent", "0"}, {"mpool_grdma_rights", "asked"}}},
          {"rights asked", {{"mpool_grdma_rights", "asked"}}},
          {"extent 0", {{"mpool_grdma_extent", "0"}}},
          {"extent 64K", {{"mpool_grdma_extent", "64K"}}},
          {"extent 2M", {{"mpool_grdma_extent", "2M"}}},
          {kNoLimit, {{"mpool_grdma_size_limit", "0"}}}};
}

// Of what was set where the trace was recorded: what decides which calls the pool makes.
tools::Pairs recorded_settings(const perf::Trace& trace) {
  constexpr const char* kNames[] = {"size_limit", "count_limit",  "max_reg_size", "extent",
                                    "rights",     "leave_pinned", "empty_cache",  "gc_limit"};
  tools::Pairs settings;
  for (const auto& setting : trace.settings) {
    const bool is_wanted = std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
      return setting.first == std::string("mpool_grdma_") + name;
    });
    if (is_wanted) settings.push_back(setting);
  }
  return settings;
}

bool has_parameter(const char* name) {
  if (pinrail_init(nullptr) != PINRAIL_SUCCESS) return false;
  pinrail_param_info_t info = {};
  info.size = sizeof(info);
  const bool has = pinrail_param_find(name, &info) == PINRAIL_SUCCESS;
  (void)pinrail_finalize();
  return has;
}

class Trials {
 public:
  Trials(const perf::Options& options, Advised* advised) : options_(options), advised_(advised) {}

  perf::Result run() {
    perf::Result ran = add({"as it is set", {}, 0, {}}, &advised_->settings);
    for (const Candidate& each : candidates()) {
      tools::Pairs wanted = each.wanted;
      wanted.erase(std::remove_if(wanted.begin(), wanted.end(),
                                  [](const auto& pair) { return !has_parameter(pair.first.c_str()); }),
                   wanted.end());
      const bool is_new = advised_->settings.size() < 2 || !wanted.empty();
      if (ran.ok() && is_new) ran = add({each.name, wanted, 0, {}}, &advised_->settings);
    }
    return ran.ok() ? run_limits() : ran;
  }

 private:
  // Fractions of what was registered at most where no limit was in the way.
  perf::Result run_limits() {
    const uint64_t peak = most_registered(*advised_);
    perf::Result ran = perf::Result::good();
    for (const uint64_t share : {16, 8, 4, 2, 1}) {
      const uint64_t limit = std::max<uint64_t>(perf::round_up(peak / share, perf::page_size()), perf::page_size());
      if (!advised_->limits.empty() && advised_->limits.back().limit == limit) continue;
      if (ran.ok()) ran = add({perf::size_text(limit), {}, limit, {}}, &advised_->limits);
    }
    return ran;
  }

  perf::Result add(Trial trial, std::vector<Trial>* to) {
    perf::Options options = options_;
    options.mca.insert(options.mca.begin(), advised_->recorded.begin(), advised_->recorded.end());
    options.mca.insert(options.mca.end(), trial.wanted.begin(), trial.wanted.end());
    if (trial.limit != 0) options.limit = trial.limit;
    perf::PoolFacts pool;
    perf::Result ran = perf::replay_trace(options, advised_->trace, &pool, &trial.figures);
    if (!ran.ok()) return ran;
    if (advised_->settings.empty()) advised_->pool = pool;
    to->push_back(std::move(trial));
    return perf::Result::good();
  }

  const perf::Options& options_;
  Advised* const advised_;
};

}  // namespace

uint64_t most_registered(const Advised& advised) {
  const auto at = std::find_if(advised.settings.begin(), advised.settings.end(),
                               [](const Trial& trial) { return trial.name == kNoLimit; });
  const Trial& unlimited = at == advised.settings.end() ? advised.settings[0] : *at;
  return unlimited.figures.stats.peak_registered_bytes;
}

perf::Result try_all(const perf::Options& options, const std::string& file, Advised* advised_out) {
  advised_out->file = file;
  perf::Result done = perf::read_trace(file, &advised_out->trace);
  if (!done.ok()) return done;
  advised_out->program = advised_out->trace.program;
  advised_out->recorded = recorded_settings(advised_out->trace);
  // First, because it refuses a trace that names more memory than there is.
  done = Trials(options, advised_out).run();
  if (!done.ok()) return perf::Result::bad("trace " + file + ": " + done.why());
  advised_out->study = study(advised_out->trace, perf::page_size());
  return done;
}

}  // namespace pinrail::advise
