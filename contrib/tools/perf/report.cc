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
  const pinrail_mpool_stats_t stats = session.stats();
  const std::string monitors = pinrail_monitors_at_work();
  printf("pinrail_perf %s: pool %s on registrar %s, %s %s, leave_pinned %u, size_limit %s\n", pinrail_version(),
         session.pool_name(), session.registrar_name(),
         monitors.find(',') == std::string::npos ? "monitor" : "monitors", monitors.empty() ? "none" : monitors.c_str(),
         stats.leave_pinned, size_text(stats.size_limit).c_str());
  if (!options.trace.empty()) return;
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

// If no program on this machine can keep registrations, prints that and why.
bool print_nothing_kept() {
  const std::string why_not = Session::why_not_kept();
  if (!why_not.empty()) printf("\nnothing is kept registered on this machine: %s\n", why_not.c_str());
  return !why_not.empty();
}

void print_notes(const Session& session, const std::vector<Row>& rows) {
  uint64_t evictions = 0;
  bool rates = false;
  for (const Row& row : rows) {
    evictions += row.evictions;
    rates = rates || row.cached_ns > 0;
  }
  if (!print_nothing_kept() && session.stats().leave_pinned == 0 && rates) {
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

void print_replay(const Options& options, const Session& session, const Trace& trace, const Replay& replay,
                  const Errors& errors) {
  const Replayed& figures = replay.figures();
  const pinrail_mpool_stats_t& stats = figures.stats;
  const double share =
      figures.calls == 0 ? 0 : 100.0 * static_cast<double>(stats.hits) / static_cast<double>(figures.calls);
  print_head(options, session);
  printf("trace          %s%s%s%s\n", options.trace.c_str(), trace.program.empty() ? "" : " (", trace.program.c_str(),
         trace.program.empty() ? "" : ")");
  printf("calls          %" PRIu64 " of register\n", figures.calls);
  printf("hits           %" PRIu64 " (%.1f %%)\n", stats.hits, share);
  printf("misses         %" PRIu64 "\n", stats.misses);
  printf("evictions      %" PRIu64 "\n", stats.evictions);
  printf("invalidations  %" PRIu64 " registrations, by %" PRIu64 " memory events\n", stats.invalidations,
         figures.reports);
  if (figures.refused > 0) printf("refused        %" PRIu64 ": what was in use filled the limit\n", figures.refused);
  printf("peak           %s registered\n", size_text(stats.peak_registered_bytes).c_str());
  printf("errors         %" PRIu64 "\n", errors.count());
  printf("bytes          %s\n", replay.bytes().said().c_str());
  printf("seconds        %.6f in calls of Pinrail\n", static_cast<double>(figures.nanoseconds) / 1e9);
  print_nothing_kept();
}

}  // namespace pinrail::perf
