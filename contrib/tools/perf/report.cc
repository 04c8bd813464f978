// SPDX-License-Identifier: BSD-3-Clause
// report.cc - prints the results as text.
#include "contrib/tools/perf/report.h"

#include <pinrail/listing.h>

#include <cinttypes>
#include <cstdio>

#include "contrib/tools/perf/text.h"

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
  printf(" %9" PRIu64 " %8" PRIu64 " %9" PRIu64 "\n", row.hits, row.misses, row.evictions);
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
  printf(" %9s %8s %9s\n", "hits", "misses", "evictions");
  if (rates) printf("%12s %12s %10s %9s %11s %8s\n", "", "", "", "", "without", "with");
  for (const Row& row : rows) print_row(row, rates);
  print_notes(session, rows);
  printf("\nerrors %" PRIu64 "; bytes: %s\n", errors.count(), table.bytes().said().c_str());
}

}  // namespace pinrail::perf
