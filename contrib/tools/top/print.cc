// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/top/print.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <sstream>

#include "contrib/tools/common/json.h"

namespace pinrail::top {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value >= 100 ? "%.0f" : "%.1f", value);
  return text;
}

// The indexes of the reasons that occurred, the most frequent first.
std::vector<uint32_t> reasons_of(const Pool& pool) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < PINRAIL_MISS_REASONS; ++i) {
    if (pool.figures.misses[i] != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return pool.figures.misses[a] > pool.figures.misses[b]; });
  return order;
}

std::string label(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

tools::Json json_of(const Pool& pool) {
  const pinrail_figures_t& figures = pool.figures;
  tools::Json json = {{"pid", pool.pid},
                      {"command", pool.command},
                      {"pool", pool.name},
                      {"registrar", pool.registrar},
                      {"monitors", pool.monitors},
                      {"hits", pool.hits},
                      {"misses", pool.misses},
                      {"hit_rate", pool.hit_rate()},
                      {"miss_reasons", tools::Json::object()}};
  for (const uint32_t reason : reasons_of(pool)) json["miss_reasons"][reason_name(reason)] = figures.misses[reason];
  json["evictions"] = pool.evictions();
  json["memory_events"] = figures.memory_events;
  json["invalidations"] = figures.invalidations;
  json["refusals"] = figures.refusals;
  json["registered_bytes"] = figures.registered_bytes;
  json["registered_count"] = figures.registered_count;
  json["size_limit"] = figures.size_limit == UINT64_MAX ? tools::Json() : tools::Json(figures.size_limit);
  json["longest_call_ns"] = figures.longest_call_ns;
  for (const CostlyRange& range : pool.ranges) {
    json["costliest_ranges"].push_back({{"base", range.base},
                                        {"length", range.length},
                                        {"misses", range.misses},
                                        {"reason", reason_name(range.reason)}});
  }
  return json;
}

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  uint64_t (*value)(const Pool& pool);
};
constexpr Metric kMetrics[] = {
    {"pinrail_hits_total", "counter", "Requests that a cached registration answered.",
     [](const Pool& pool) { return pool.hits; }},
    {"pinrail_evictions_total", "counter", "Registrations given back to make room.",
     [](const Pool& pool) { return pool.evictions(); }},
    {"pinrail_memory_events_total", "counter", "Memory events that ended registrations.",
     [](const Pool& pool) { return uint64_t{pool.figures.memory_events}; }},
    {"pinrail_invalidations_total", "counter", "Registrations that memory events ended.",
     [](const Pool& pool) { return uint64_t{pool.figures.invalidations}; }},
    {"pinrail_refusals_total", "counter", "Calls that the registrar refused.",
     [](const Pool& pool) { return uint64_t{pool.figures.refusals}; }},
    {"pinrail_registered_bytes", "gauge", "Bytes registered with the device.",
     [](const Pool& pool) { return uint64_t{pool.figures.registered_bytes}; }},
    {"pinrail_longest_call_nanoseconds", "gauge", "The longest call of the registrar.",
     [](const Pool& pool) { return uint64_t{pool.figures.longest_call_ns}; }},
};

std::string labels_of(const Pool& pool) {
  return "pid=\"" + std::to_string(pool.pid) + "\",command=\"" + label(pool.command) + "\",pool=\"" + label(pool.name) +
         "\",file=\"" + std::to_string(pool.file) + "\"";
}

void put_head(const char* name, const char* type, const char* help, std::ostream& out) {
  out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
}

}  // namespace

std::string bytes_text(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "none";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return number(value) + " " + kUnits[unit];
}

std::string time_text(uint64_t ns) { return ns == 0 ? "-" : number(static_cast<double>(ns) / 1e6) + " ms"; }

std::string reasons_text(const Pool& pool, size_t most) {
  std::string text;
  for (const uint32_t reason : reasons_of(pool)) {
    if (most-- == 0) break;
    const double share = 100.0 * static_cast<double>(pool.figures.misses[reason]) / static_cast<double>(pool.misses);
    text += (text.empty() ? "" : ", ") + reason_name(reason) + " " + number(share) + " %";
  }
  return text.empty() ? "-" : text;
}

std::string head_line() {
  char line[160];
  std::snprintf(line, sizeof(line), "%8s %-15s %-7s %6s %9s %9s %10s %8s %9s  %s", "PID", "COMMAND", "POOL", "HIT %",
                "HITS/S", "MISSES/S", "BYTES", "EVICT/S", "LONGEST", "WHY MISSES");
  return line;
}

std::string pool_line(const Pool& pool, const Rates& rates) {
  char line[320];
  std::snprintf(line, sizeof(line), "%8d %-15.15s %-7.7s %6.1f %9s %9s %10s %8s %9s  %s", pool.pid,
                pool.command.c_str(), pool.name.c_str(), pool.hit_rate(), number(rates.hits).c_str(),
                number(rates.misses).c_str(), bytes_text(pool.figures.registered_bytes).c_str(),
                number(rates.evictions).c_str(), time_text(pool.figures.longest_call_ns).c_str(),
                reasons_text(pool, 3).c_str());
  return line;
}

std::string json_text(const std::vector<Pool>& pools) {
  tools::Json json = {{"pools", tools::Json::array()}};
  for (const Pool& pool : pools) json["pools"].push_back(json_of(pool));
  std::ostringstream out;
  tools::print(json, out);
  return out.str();
}

std::string prometheus_text(const std::vector<Pool>& pools) {
  std::ostringstream out;
  for (const Metric& metric : kMetrics) {
    put_head(metric.name, metric.type, metric.help, out);
    for (const Pool& pool : pools) out << metric.name << '{' << labels_of(pool) << "} " << metric.value(pool) << '\n';
  }
  put_head("pinrail_misses_total", "counter", "Requests that no cached registration answered, by reason.", out);
  for (const Pool& pool : pools) {
    for (uint32_t reason = 0; reason < PINRAIL_MISS_REASONS; ++reason) {
      out << "pinrail_misses_total{" << labels_of(pool) << ",reason=\"" << reason_name(reason) << "\"} "
          << pool.figures.misses[reason] << '\n';
    }
  }
  return out.str();
}

}  // namespace pinrail::top
