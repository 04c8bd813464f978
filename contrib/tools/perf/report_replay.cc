// SPDX-License-Identifier: BSD-3-Clause
// report_replay.cc - prints replays as text.
#include <cinttypes>
#include <cstdio>

#include "contrib/tools/perf/report.h"
#include "contrib/tools/perf/text.h"

namespace pinrail::perf {

namespace {

double milliseconds(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

double cost_ms(const Options& options, const Replayed& figures) {
  return options.cost.ms(figures.device.calls, figures.device.pages);
}

std::string model_text(const CostModel& cost) {
  return text("%g ns a call and %g ns a page", cost.call_ns, cost.page_ns);
}

std::string percent(uint64_t part, uint64_t whole) {
  return text("%.1f %%", whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// "amr.r0" of "/traces/amr.r0.trace.xz".
std::string short_name(const std::string& file) {
  const std::string name = file.substr(file.rfind('/') + 1);
  return name.substr(0, name.find(".trace"));
}

std::string width_of(const std::vector<ReplayedTrace>& replayed) {
  size_t longest = sizeof("geometric mean") - 1;
  for (const ReplayedTrace& each : replayed) longest = std::max(longest, short_name(each.trace).size());
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
  printf("%s %9" PRIu64 " %8s %8" PRIu64 " %9" PRIu64 " %11.3f %9.3f", cell(width, short_name(each.trace)).c_str(),
         now.calls, percent(now.stats.hits, now.calls).c_str(), now.device.calls, now.device.pages,
         milliseconds(now.device.register_ns), cost_ms(options, now));
  if (each.exact)
    printf(" %8" PRIu64 " %9" PRIu64 " %11.3f %9.3f %6.2f %6.2f", each.exact->device.calls, each.exact->device.pages,
           milliseconds(each.exact->device.register_ns), cost_ms(options, *each.exact), each.time_ratio(),
           each.cost_ratio(options.cost));
  const uint64_t errors = now.errors + (each.exact ? each.exact->errors : 0);
  if (errors > 0) printf("  %" PRIu64 " errors", errors);
  printf("\n");
}

}  // namespace

void print_replay(const Options& options, const ReplayedTrace& replayed) {
  const Replayed& figures = replayed.figures;
  const pinrail_mpool_stats_t& stats = figures.stats;
  print_facts(replayed.pool);
  printf("trace          %s%s%s%s\n", replayed.trace.c_str(), replayed.program.empty() ? "" : " (",
         replayed.program.c_str(), replayed.program.empty() ? "" : ")");
  printf("calls          %" PRIu64 " of register\n", figures.calls);
  printf("hits           %" PRIu64 " (%s)\n", stats.hits, percent(stats.hits, figures.calls).c_str());
  printf("misses         %" PRIu64 "\n", stats.misses);
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

}  // namespace pinrail::perf
