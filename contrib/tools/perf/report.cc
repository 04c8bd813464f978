// SPDX-License-Identifier: BSD-3-Clause
// report.cc - prints the results, as text and as JSON.
#include "contrib/tools/perf/report.h"

#include <pinrail/listing.h>

#include <cinttypes>
#include <cstdio>
#include <iostream>

#include "contrib/tools/common/json.h"
#include "contrib/tools/common/program.h"
#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

std::string size_name(const Row& row) { return size_text(row.size) + (row.pages == Pages::huge ? " huge" : ""); }

std::string nanoseconds(double ns) {
  if (ns <= 0) return "-";
  return text(ns < 100 ? "%.1f" : "%.0f", ns);
}

std::string times(double ratio) {
  if (ratio <= 0) return "-";
  return text(ratio < 10 ? "%.1fx" : "%.0fx", ratio);
}

void print_head(const Options& options, const Session& session) {
  print_facts(session.facts());
  printf(
      "One register + deregister of a buffer, in nanoseconds, without the cache and with it\n"
      "(medians; %u thread%s, %zu buffer%s each):\n\n",
      options.threads, options.threads == 1 ? "" : "s", options.regions, options.regions == 1 ? "" : "s");
}

void print_row(const Row& row, bool rates) {
  if (row.cached_ns <= 0 && row.uncached_ns <= 0) {
    printf("%12s   %s\n", size_name(row).c_str(), row.reason.c_str());
    return;
  }
  printf("%12s %12s %10s %9s", size_name(row).c_str(), nanoseconds(row.uncached_ns).c_str(),
         nanoseconds(row.cached_ns).c_str(), times(row.speedup()).c_str());
  if (!row.reason.empty()) {
    printf("   %s\n", row.reason.c_str());
    return;
  }
  if (rates) printf(" %11.3f %8.3f", row.uncached_per_second / 1e6, row.cached_per_second / 1e6);
  printf(" %9" PRIu64 " %8" PRIu64 " %9" PRIu64 "  %s\n", row.hits, row.misses, row.evictions,
         tools::reasons_text(row.reasons).c_str());
}

void print_notes(const Session& session, const std::vector<Row>& rows) {
  uint64_t evictions = 0;
  bool rates = false;
  for (const Row& row : rows) {
    evictions += row.evictions;
    rates = rates || row.cached_ns > 0;
  }
  if (!print_nothing_kept(session.facts()) && session.stats().leave_pinned == 0 && rates) {
    printf("\nNothing was kept: leave_pinned is 0 (%s is %s), so both columns pay for the device.\n",
           session.parameter("leave_pinned").c_str(), session.describe("leave_pinned").c_str());
  }
  if (evictions == 0) return;
  const std::string limit = limit_text(session);
  printf(
      "\nThe buffers of a row with evictions do not fit into what may stay registered%s%s%s:\n"
      "a miss there pays for the device, and for giving another buffer back.\n",
      limit.empty() ? "" : " (", limit.c_str(), limit.empty() ? "" : ")");
}

double milliseconds(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

double cost_ms(const Options& options, const Replayed& figures) {
  return options.cost.ms(figures.device.calls, figures.device.pages);
}

std::string model_text(const CostModel& cost) {
  return text("%g ns a call and %g ns a page", cost.call_ns, cost.page_ns);
}

std::string width_of(const std::vector<ReplayedTrace>& replayed) {
  size_t longest = sizeof("geometric mean") - 1;
  for (const ReplayedTrace& each : replayed) longest = std::max(longest, tools::name_of_trace(each.trace).size());
  return text("%%-%zus", longest);
}

std::string cell(const std::string& width, const std::string& content) {
  char room[512];
  snprintf(room, sizeof(room), width.c_str(), content.c_str());
  return room;
}

void print_registrar(const Options& options, const Replayed& figures) {
  const DeviceCalls& device = figures.device;
  printf("registrar      %" PRIu64 " register calls, %" PRIu64 " pages", device.calls, device.pages);
  if (device.refused > 0) printf(", %" PRIu64 " refused", device.refused);
  printf("; %.3f ms, and %.3f ms to deregister\n", milliseconds(device.register_ns),
         milliseconds(device.deregister_ns));
  printf("cost           %.3f ms at %s\n", cost_ms(options, figures), model_text(options.cost).c_str());
}

void print_row(const Options& options, const ReplayedTrace& each, const std::string& width) {
  const Replayed& now = each.figures;
  printf("%s %9" PRIu64 " %8s %8" PRIu64 " %9" PRIu64 " %11.3f %9.3f",
         cell(width, tools::name_of_trace(each.trace)).c_str(), now.calls, percent(now.stats.hits, now.calls).c_str(),
         now.device.calls, now.device.pages, milliseconds(now.device.register_ns), cost_ms(options, now));
  if (each.exact)
    printf(" %8" PRIu64 " %9" PRIu64 " %11.3f %9.3f %6.2f %6.2f", each.exact->device.calls, each.exact->device.pages,
           milliseconds(each.exact->device.register_ns), cost_ms(options, *each.exact), each.time_ratio(),
           each.cost_ratio(options.cost));
  const uint64_t errors = now.errors + (each.exact ? each.exact->errors : 0);
  if (errors > 0) printf("  %" PRIu64 " errors", errors);
  printf("\n");
}

}  // namespace

void print_facts(const PoolFacts& facts) {
  printf("pinrail_perf %s: pool %s on registrar %s, %s %s, leave_pinned %u, size_limit %s\n", pinrail_version(),
         facts.pool.c_str(), facts.registrar.c_str(),
         facts.monitors.find(',') == std::string::npos ? "monitor" : "monitors",
         facts.monitors.empty() ? "none" : facts.monitors.c_str(), facts.leave_pinned,
         size_text(facts.size_limit).c_str());
}

bool print_nothing_kept(const PoolFacts& facts) {
  if (!facts.why_not_kept.empty())
    printf("\nnothing is kept registered on this machine: %s\n", facts.why_not_kept.c_str());
  return !facts.why_not_kept.empty();
}

void print_table(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                 const Errors& errors) {
  const bool rates = options.threads > 1;
  print_head(options, session);
  printf("%12s %12s %10s %9s", "size", "without", "with", "speedup");
  if (rates) printf(" %20s", "million pairs/s");
  printf(" %9s %8s %9s  %s\n", "hits", "misses", "evictions", "why misses");
  if (rates) printf("%12s %12s %10s %9s %11s %8s\n", "", "", "", "", "without", "with");
  for (const Row& row : rows) print_row(row, rates);
  print_notes(session, rows);
  printf("\nerrors %" PRIu64 "; bytes: %s\n", errors.count(), table.bytes().said().c_str());
}

void print_replay(const Options& options, const ReplayedTrace& replayed) {
  const Replayed& figures = replayed.figures;
  const pinrail_mpool_stats_t& stats = figures.stats;
  print_facts(replayed.pool);
  printf("trace          %s%s%s%s\n", printable(replayed.trace).c_str(), replayed.program.empty() ? "" : " (",
         replayed.program.c_str(), replayed.program.empty() ? "" : ")");
  printf("calls          %" PRIu64 " of register\n", figures.calls);
  printf("hits           %" PRIu64 " (%s)\n", stats.hits, percent(stats.hits, figures.calls).c_str());
  printf("misses         %" PRIu64 "\n", stats.misses);
  printf("why misses     %s\n", tools::reasons_text(tools::misses_of(stats)).c_str());
  printf("evictions      %" PRIu64 "\n", stats.evictions);
  printf("invalidations  %" PRIu64 " registrations, by %" PRIu64 " memory events\n", stats.invalidations,
         figures.reports);
  if (figures.refused > 0)
    printf("refused        %" PRIu64 ": they did not fit into the limit beside what was in use\n", figures.refused);
  printf("peak           %s registered\n", size_text(stats.peak_registered_bytes).c_str());
  print_registrar(options, figures);
  printf("errors         %" PRIu64 "\n", figures.errors);
  printf("bytes          %s\n", figures.bytes_checked.c_str());
  printf("seconds        %.6f in calls of Pinrail\n", static_cast<double>(figures.nanoseconds) / 1e9);
  print_nothing_kept(replayed.pool);
}

void print_replays(const Options& options, const std::vector<ReplayedTrace>& replayed) {
  const std::string width = width_of(replayed);
  print_facts(replayed[0].pool);
  printf("Register calls of the device, their pages and time, and their cost at %s (ms)%s\n\n",
         model_text(options.cost).c_str(),
         options.compare ? ";\nbeside them the same of an exact replay, and the ratios" : "");
  printf("%s %9s %8s %8s %9s %11s %9s", cell(width, "").c_str(), "requests", "hits", "calls", "pages", "register ms",
         "cost ms");
  if (options.compare) printf(" %8s %9s %11s %9s %6s %6s", "calls", "pages", "register ms", "cost ms", "time", "cost");
  printf("\n");
  for (const ReplayedTrace& each : replayed) print_row(options, each, width);
  const Means means = means_of(options.cost, replayed);
  printf("%s %9s %8s %8s %9s %11.3f %9.3f", cell(width, "geometric mean").c_str(), "", "", "", "", means.register_ms,
         means.cost_ms);
  if (options.compare) printf(" %8s %9s %11s %9s %6.2f %6.2f", "", "", "", "", means.time_ratio, means.cost_ratio);
  printf("\n");
  print_nothing_kept(replayed[0].pool);
}

// Prints the results as JSON.

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
