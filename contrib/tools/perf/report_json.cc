// SPDX-License-Identifier: BSD-3-Clause
// report_json.cc - prints the results as JSON.
#include <pinrail/listing.h>

#include <iostream>

#include "contrib/tools/common/json.h"
#include "contrib/tools/perf/report.h"

namespace pinrail::perf {

namespace {

using tools::Json;

Json figure(double value) { return value > 0 ? Json(value) : Json(); }

void put_pool(const PoolFacts& facts, Json* json) {
  (*json)["pool"] = facts.pool;
  (*json)["registrar"] = facts.registrar;
  (*json)["monitors"] = facts.monitors;
  (*json)["leave_pinned"] = facts.leave_pinned;
  (*json)["why_not_kept"] = facts.why_not_kept;
  (*json)["size_limit"] = facts.size_limit == UINT64_MAX ? Json() : Json(facts.size_limit);
}

void put_bytes(const std::string& said, uint64_t compared, uint64_t unchecked, Json* json) {
  (*json)["bytes_checked"] = said;
  (*json)["compared_bytes"] = compared;
  (*json)["unchecked_bytes"] = unchecked;
}

Json row_json(const Options& options, const Row& row) {
  Json json = {{"size", row.size},
               {"pages", row.pages == Pages::huge ? "huge" : "small"},
               {"uncached_ns", figure(row.uncached_ns)},
               {"cached_ns", figure(row.cached_ns)},
               {"speedup", figure(row.speedup())},
               {"hits", row.hits},
               {"misses", row.misses},
               {"miss_reasons", tools::reasons_json(row.reasons)},
               {"evictions", row.evictions},
               {"errors", row.errors}};
  if (!row.reason.empty()) json["reason"] = row.reason;
  json["threads"] = options.threads;
  json["uncached_per_second"] = figure(row.uncached_per_second);
  json["cached_per_second"] = figure(row.cached_per_second);
  json["registered_bytes"] = row.registered_bytes;
  json["pinned_bytes"] = row.pinned_bytes;
  json["registered_growth"] = row.growth.registered;
  json["pinned_growth"] = row.growth.pinned;
  json["vmpin_growth"] = row.growth.vm_pin;
  json["vmlck_growth"] = row.growth.vm_lck;
  return json;
}

Json device_json(const Options& options, const Replayed& figures) {
  return {{"registrar_calls", figures.device.calls},
          {"registrar_refused", figures.device.refused},
          {"registrar_pages", figures.device.pages},
          {"register_ms", static_cast<double>(figures.device.register_ns) / 1e6},
          {"deregister_ms", static_cast<double>(figures.device.deregister_ns) / 1e6},
          {"cost_ms", options.cost.ms(figures.device.calls, figures.device.pages)}};
}

Json replay_json(const Options& options, const ReplayedTrace& replayed) {
  const Replayed& figures = replayed.figures;
  Json json = {{"trace", replayed.trace}};
  put_pool(replayed.pool, &json);
  json["calls"] = figures.calls;
  json["hits"] = figures.stats.hits;
  json["misses"] = figures.stats.misses;
  json["miss_reasons"] = tools::reasons_json(tools::misses_of(figures.stats));
  json["evictions"] = figures.stats.evictions;
  json["invalidations"] = figures.stats.invalidations;
  json["events"] = figures.reports;
  json["refused"] = figures.refused;
  json["peak_bytes"] = figures.stats.peak_registered_bytes;
  json.update(device_json(options, figures));
  json["errors"] = figures.errors;
  put_bytes(figures.bytes_checked, figures.compared_bytes, figures.unchecked_bytes, &json);
  json["seconds"] = static_cast<double>(figures.nanoseconds) / 1e9;
  return json;
}

}  // namespace

void print_table_json(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                      const Errors& errors) {
  Json json;
  put_pool(session.facts(), &json);
  json["regions"] = options.regions;
  json["threads"] = options.threads;
  json["errors"] = errors.count();
  put_bytes(table.bytes().said(), table.bytes().compared_bytes(), table.bytes().unchecked_bytes(), &json);
  json["rows"] = Json::array();
  for (const Row& row : rows) json["rows"].push_back(row_json(options, row));
  tools::print(json, std::cout);
}

void print_replay_json(const Options& options, const ReplayedTrace& replayed) {
  tools::print(replay_json(options, replayed), std::cout);
}

void print_replays_json(const Options& options, const std::vector<ReplayedTrace>& replayed) {
  Json json = {{"call_ns", options.cost.call_ns}, {"page_ns", options.cost.page_ns}, {"traces", Json::array()}};
  for (const ReplayedTrace& each : replayed) {
    Json trace = replay_json(options, each);
    if (each.exact) {
      trace["exact"] = device_json(options, *each.exact);
      trace["cost_ratio"] = figure(each.cost_ratio(options.cost));
      trace["time_ratio"] = figure(each.time_ratio());
    }
    json["traces"].push_back(trace);
  }
  const Means means = means_of(options.cost, replayed);
  json["mean_cost_ms"] = figure(means.cost_ms);
  json["mean_register_ms"] = figure(means.register_ms);
  if (options.compare) {
    json["mean_cost_ratio"] = figure(means.cost_ratio);
    json["mean_time_ratio"] = figure(means.time_ratio);
  }
  tools::print(json, std::cout);
}

}  // namespace pinrail::perf
