// SPDX-License-Identifier: BSD-3-Clause
// scenario.cc - the list of scenarios, and how their figures are printed.
#include "contrib/tools/perf/scenario.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "contrib/tools/common/json.h"
#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

struct Scenario {
  const char* name;
  Result (*run)(const Options& options, const Session& session, Figures* figures_out);
  const char* pool;
};

constexpr Scenario kScenarios[] = {{"prepin", run_prepin, ""},    {"terabyte", run_terabyte, ""},
                                   {"chunks", run_chunks, ""},    {"alloc", run_alloc, ""},
                                   {"mrall", run_mrall, "mrall"}, {"odp", run_odp, "odp"}};

const char* words(Bound bound) {
  switch (bound) {
    case Bound::at_most: return "at most";
    case Bound::at_least: return "at least";
    case Bound::exactly: return "exactly";
    case Bound::none: break;
  }
  return "";
}

void print_json(const Options& options, const Session& session, const Figures& figures) {
  tools::Json json = {{"scenario", options.scenario},
                      {"pool", session.pool_name()},
                      {"registrar", session.registrar_name()},
                      {"reached", figures.are_reached()}};
  json["figures"] = tools::Json::array();
  for (const Figure& figure : figures.all()) {
    tools::Json each = {{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
    if (figure.bound != Bound::none) {
      each["bound"] = words(figure.bound);
      each["limit"] = figure.limit;
      each["reached"] = figure.is_reached();
    }
    json["figures"].push_back(each);
  }
  json["left_out"] = tools::Json::array();
  for (const auto& [name, why] : figures.left_out()) json["left_out"].push_back({{"name", name}, {"why", why}});
  tools::print(json, std::cout);
}

}  // namespace

bool Figure::is_reached() const {
  switch (bound) {
    case Bound::at_most: return value <= limit;
    case Bound::at_least: return value >= limit;
    case Bound::exactly: return value == limit;
    case Bound::none: break;
  }
  return true;
}

void Figures::leave_out(const std::string& name, const std::string& why) { left_out_.emplace_back(name, why); }

bool Figures::are_reached() const {
  return std::all_of(figures_.begin(), figures_.end(), [](const Figure& figure) { return figure.is_reached(); });
}

std::string scenario_names() {
  std::string names;
  for (const Scenario& scenario : kScenarios) names += (names.empty() ? "" : ", ") + std::string(scenario.name);
  return names;
}

bool is_scenario(const std::string& name) {
  return std::any_of(std::begin(kScenarios), std::end(kScenarios),
                     [&](const Scenario& each) { return name == each.name; });
}

std::string pool_of_scenario(const std::string& name) {
  for (const Scenario& scenario : kScenarios) {
    if (name == scenario.name) return scenario.pool;
  }
  return "";
}

Result run_scenario(const Options& options, const Session& session, Figures* figures_out) {
  for (const Scenario& scenario : kScenarios) {
    if (options.scenario == scenario.name) return scenario.run(options, session, figures_out);
  }
  return Result::bad("no such scenario: " + options.scenario);
}

void print_scenario(const Options& options, const Session& session, const Figures& figures) {
  if (options.json) {
    print_json(options, session, figures);
    return;
  }
  printf("scenario %s, pool %s, registrar %s\n", options.scenario.c_str(), session.pool_name(),
         session.registrar_name());
  for (const Figure& figure : figures.all()) {
    printf("  %-52s %12.4g %-8s", figure.name.c_str(), figure.value, figure.unit.c_str());
    if (figure.bound != Bound::none) {
      printf(" %s %g: %s", words(figure.bound), figure.limit, figure.is_reached() ? "reached" : "NOT REACHED");
    }
    printf("\n");
  }
  for (const auto& [name, why] : figures.left_out()) printf("  %-52s not measured: %s\n", name.c_str(), why.c_str());
}

Result failed(const char* call, pinrail_status_t status) {
  return Result::bad(text("%s: %s", call, pinrail_status_name(status)));
}

double ms_since(uint64_t began_ns) { return static_cast<double>(now_ns() - began_ns) * 1e-6; }

Result unpin(const Session& session, const std::vector<pinrail_range_t>& ranges) {
  const pinrail_status_t status =
      pinrail_mpool_unpin(session.pool(), ranges.data(), ranges.size(), PINRAIL_ACCESS_LOCAL_WRITE);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("pinrail_mpool_unpin", status);
}

FreshMemory::FreshMemory(size_t bytes)
    : bytes_(bytes),
      at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (at_ == MAP_FAILED) {
    at_ = nullptr;
    return;
  }
  madvise(at_, bytes, MADV_NOHUGEPAGE);
}

FreshMemory::~FreshMemory() {
  if (at_ == nullptr) return;
  pinrail_monitor_report(at_, bytes_);
  munmap(at_, bytes_);
}

}  // namespace pinrail::perf
