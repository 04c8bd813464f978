// SPDX-License-Identifier: BSD-3-Clause
// report_json.cc - prints what was measured, for programs.
#include <pinrail/listing.h>

#include <iostream>

#include "contrib/tools/common/json.h"
#include "contrib/tools/perf/report.h"

namespace pinrail::perf {

namespace {

using tools::JsonWriter;

void figure(JsonWriter* json, const char* key, double value) {
  json->key(key);
  if (value > 0)
    json->value(value);
  else
    json->null();
}

void pool(JsonWriter* json, const Session& session) {
  const pinrail_mpool_stats_t stats = session.stats();
  json->field("pool", session.pool_name());
  json->field("registrar", session.registrar_name());
  json->field("monitors", pinrail_monitors_at_work());
  json->field("leave_pinned", stats.leave_pinned);
  json->field("why_not_kept", Session::why_not_kept());
  json->key("size_limit");
  if (stats.size_limit == UINT64_MAX)
    json->null();
  else
    json->value(stats.size_limit);
}

void bytes(JsonWriter* json, const ByteCheck& check) {
  json->field("bytes_checked", check.said());
  json->field("compared_bytes", check.compared_bytes());
  json->field("unchecked_bytes", check.unchecked_bytes());
}

void table_row(JsonWriter* json, const Options& options, const Row& row) {
  json->begin_object();
  json->field("size", row.size);
  json->field("pages", row.pages == Pages::huge ? "huge" : "small");
  figure(json, "uncached_ns", row.uncached_ns);
  figure(json, "cached_ns", row.cached_ns);
  figure(json, "speedup", row.speedup());
  json->field("hits", row.hits);
  json->field("misses", row.misses);
  json->field("evictions", row.evictions);
  json->field("errors", row.errors);
  if (!row.reason.empty()) json->field("reason", row.reason);
  json->field("threads", options.threads);
  figure(json, "uncached_per_second", row.uncached_per_second);
  figure(json, "cached_per_second", row.cached_per_second);
  json->field("registered_bytes", row.registered_bytes);
  json->field("pinned_bytes", row.pinned_bytes);
  json->field("registered_growth", row.growth.registered);
  json->field("pinned_growth", row.growth.pinned);
  json->field("vmpin_growth", row.growth.vm_pin);
  json->field("vmlck_growth", row.growth.vm_lck);
  json->end_object();
}

}  // namespace

void print_table_json(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                      const Errors& errors) {
  JsonWriter json(std::cout);
  json.begin_object();
  pool(&json, session);
  json.field("regions", options.regions);
  json.field("threads", options.threads);
  json.field("errors", errors.count());
  bytes(&json, table.bytes());
  json.key("rows");
  json.begin_array();
  for (const Row& row : rows) table_row(&json, options, row);
  json.end_array();
  json.end_object();
}

void print_replay_json(const Options& options, const Session& session, const Replay& replay, const Errors& errors) {
  const Replayed& figures = replay.figures();
  JsonWriter json(std::cout);
  json.begin_object();
  json.field("trace", options.trace);
  pool(&json, session);
  json.field("calls", figures.calls);
  json.field("hits", figures.stats.hits);
  json.field("misses", figures.stats.misses);
  json.field("evictions", figures.stats.evictions);
  json.field("invalidations", figures.stats.invalidations);
  json.field("events", figures.reports);
  json.field("refused", figures.refused);
  json.field("peak_bytes", figures.stats.peak_registered_bytes);
  json.field("errors", errors.count());
  bytes(&json, replay.bytes());
  json.field("seconds", static_cast<double>(figures.nanoseconds) / 1e9);
  json.end_object();
}

}  // namespace pinrail::perf
