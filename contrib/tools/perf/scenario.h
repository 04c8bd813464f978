// SPDX-License-Identifier: BSD-3-Clause
// scenario.h - ways to use a pool, each with figures that must be reached.
//
// Threads  one scenario at a time.
#ifndef PINRAIL_TOOLS_PERF_SCENARIO_H
#define PINRAIL_TOOLS_PERF_SCENARIO_H

#include <pinrail/pin.h>

#include <string>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/options.h"
#include "contrib/tools/perf/session.h"

namespace pinrail::perf {

enum class Bound { none, at_most, at_least, exactly };

struct Figure {
  std::string name;  // "first usable, 1 GiB"
  double value;
  std::string unit;  // "ms", "calls", "times"
  Bound bound;
  double limit;

  bool is_reached() const;
};

class Figures {
 public:
  template <typename Number>
  void add(const std::string& name, Number value, const char* unit, Bound bound = Bound::none, double limit = 0) {
    figures_.push_back({name, static_cast<double>(value), unit, bound, limit});
  }
  // What could not be measured here, and why. That is no error.
  void leave_out(const std::string& name, const std::string& why);

  const std::vector<Figure>& all() const { return figures_; }
  const std::vector<std::pair<std::string, std::string>>& left_out() const { return left_out_; }
  bool are_reached() const;

 private:
  std::vector<Figure> figures_;
  std::vector<std::pair<std::string, std::string>> left_out_;
};

// The names of the scenarios, with commas between them.
std::string scenario_names();
bool is_scenario(const std::string& name);
// The mpool that the scenario is about; "": any.
std::string pool_of_scenario(const std::string& name);

// Runs the scenario of options.scenario. Bad: a call failed that must not.
Result run_scenario(const Options& options, const Session& session, Figures* figures_out);
void print_scenario(const Options& options, const Session& session, const Figures& figures);

// The scenarios.
Result run_prepin(const Options& options, const Session& session, Figures* figures_out);
Result run_terabyte(const Options& options, const Session& session, Figures* figures_out);
Result run_alloc(const Options& options, const Session& session, Figures* figures_out);
Result run_mrall(const Options& options, const Session& session, Figures* figures_out);
Result run_odp(const Options& options, const Session& session, Figures* figures_out);
Result run_chunks(const Options& options, const Session& session, Figures* figures_out);

// What the scenarios have in common.
Result failed(const char* call, pinrail_status_t status);
double ms_since(uint64_t began_ns);
Result unpin(const Session& session, const std::vector<pinrail_range_t>& ranges);  // of the access LOCAL_WRITE

// Small anonymous pages that nothing has touched, reported to Pinrail and unmapped at the end.
class FreshMemory {
 public:
  explicit FreshMemory(size_t bytes);
  ~FreshMemory();
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  bool is_mapped() const { return at_ != nullptr; }
  char* at(size_t offset = 0) const { return static_cast<char*>(at_) + offset; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  void* at_;
};

}  // namespace pinrail::perf

#endif
