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

void put_pool(const Session& session, Json* json) {
  const pinrail_mpool_stats_t stats = session.stats();
  (*json)["pool"] = session.pool_name();
  (*json)["registrar"] = session.registrar_name();
  (*json)["monitors"] = pinrail_monitors_at_work();
  (*json)["leave_pinned"] = stats.leave_pinned;
  (*json)["why_not_kept"] = Session::why_not_kept();
  (*json)["size_limit"] = stats.size_limit == UINT64_MAX ? Json() : Json(stats.size_limit);
}

void put_bytes(const ByteCheck& check, Json* json) {
  (*json)["bytes_checked"] = check.said();
  (*json)["compared_bytes"] = check.compared_bytes();
  (*json)["unchecked_bytes"] = check.unchecked_bytes();
}

Json row_json(const Options& options, const Row& row) {
  Json json = {{"size", row.size},
               {"pages", row.pages == Pages::huge ? "huge" : "small"},
               {"uncached_ns", figure(row.uncached_ns)},
               {"cached_ns", figure(row.cached_ns)},
               {"speedup", figure(row.speedup())},
               {"hits", row.hits},
               {"misses", row.misses},
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

}  // namespace

void print_table_json(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                      const Errors& errors) {
  Json json;
  put_pool(session, &json);
  json["regions"] = options.regions;
  json["threads"] = options.threads;
  json["errors"] = errors.count();
  put_bytes(table.bytes(), &json);
  json["rows"] = Json::array();
  for (const Row& row : rows) json["rows"].push_back(row_json(options, row));
  tools::print(json, std::cout);
}

void print_replay_json(const Options& options, const Session& session, const Replay& replay, const Errors& errors) {
  const Replayed& figures = replay.figures();
  Json json = {{"trace", options.trace}};
  put_pool(session, &json);
  json["calls"] = figures.calls;
  json["hits"] = figures.stats.hits;
  json["misses"] = figures.stats.misses;
  json["evictions"] = figures.stats.evictions;
  json["invalidations"] = figures.stats.invalidations;
  json["events"] = figures.reports;
  json["refused"] = figures.refused;
  json["peak_bytes"] = figures.stats.peak_registered_bytes;
  json["errors"] = errors.count();
  put_bytes(replay.bytes(), &json);
  json["seconds"] = static_cast<double>(figures.nanoseconds) / 1e9;
  tools::print(json, std::cout);
}

}  // namespace pinrail::perf
