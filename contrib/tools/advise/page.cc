// SPDX-License-Identifier: BSD-3-Clause
// page.cc - one HTML file with the advice, the pictures and the parameters.

#include <algorithm>
#include <cinttypes>

#include "contrib/tools/advise/svg.h"
#include "contrib/tools/advise/words.h"
#include "contrib/tools/perf/basics.h"

namespace pinrail::advise {

using perf::size_text;
using perf::text;

namespace {

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>pinrail_advise</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
svg { width: 100%; height: auto; margin: .5rem 0 }
svg text { font: 12px sans-serif; fill: #444 }
svg text.title { font-weight: bold; font-size: 14px }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { padding: .15rem .8rem .15rem 0; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
pre { background: #f4f4f4; padding: .8rem; overflow-x: auto }
</style>
</head>
<body>
)";

double as_double(uint64_t value) { return static_cast<double>(value); }

// Misses of an LRU cache for each limit, and what the real pool did with five of them.
std::string limits_picture(const Advised& advised) {
  const Study& study = advised.study;
  const uint64_t widest = std::max<uint64_t>({study.peak_bytes, advised.limits.back().limit, 1});
  Line lru = {"LRU, by stack distances", "#4878a8", {}, Line::steps};
  for (int i = 1; i <= 200; i++) {
    const uint64_t limit = widest / 200 * static_cast<uint64_t>(i) + widest % 200 * static_cast<uint64_t>(i) / 200;
    lru.points.emplace_back(as_double(limit), as_double(study.misses_of_lru(limit)));
  }
  Line replayed = {"replayed in a pool", "#c0504d", {}, Line::dots};
  double most = lru.points.front().second;
  for (const Trial& trial : advised.limits) {
    replayed.points.emplace_back(as_double(trial.limit), as_double(trial.figures.device.calls));
    most = std::max(most, replayed.points.back().second);
  }
  return chart({"Register calls of the device, by the limit", "size_limit", "calls", as_double(widest), most,
                size_text(widest), text("%.0f", most)},
               {lru, replayed});
}

std::string time_picture(const Advised& advised) {
  const perf::Replayed& now = advised.settings[0].figures;
  Line bytes = {"bytes registered", "#4878a8", {}, Line::joined};
  Line events = {"registrations ended by events, of all", "#c0504d", {}, Line::joined};
  Line evictions = {"evictions, of all", "#3a9a5b", {}, Line::joined};
  const double peak = as_double(std::max<uint64_t>(now.stats.peak_registered_bytes, 1));
  const double ended = as_double(std::max<uint64_t>(now.stats.invalidations + now.stats.evictions, 1));
  for (const perf::Sample& sample : now.samples) {
    const double at = as_double(advised.trace.records[sample.record].ns);
    bytes.points.emplace_back(at, as_double(sample.registered_bytes));
    events.points.emplace_back(at, as_double(sample.invalidations) / ended * peak);
    evictions.points.emplace_back(at, as_double(sample.evictions) / ended * peak);
  }
  const double last = as_double(advised.trace.records.back().ns);
  return chart({"Over the time of the recording, as it is set", "time", "bytes", std::max(last, 1.0), peak,
                text("%.2f s", last / 1e9), size_text(now.stats.peak_registered_bytes)},
               {bytes, events, evictions});
}

// Places one after the other, without the gaps between them, in columns of equal bytes.
std::string map_picture(const Study& study) {
  constexpr size_t kColumns = 300;
  std::vector<std::pair<double, double>> columns(kColumns);
  uint64_t all = 0, at = 0;
  for (const Place& place : study.places) all += place.end - place.begin;
  for (const Place& place : study.places) {
    const double bytes = as_double(place.end - place.begin);
    const auto first = static_cast<size_t>(as_double(at) / as_double(all) * kColumns);
    at += place.end - place.begin;
    const auto last = std::max(first + 1, static_cast<size_t>(as_double(at) / as_double(all) * kColumns));
    for (size_t i = first; i < std::min(last, kColumns); i++) {
      columns[i].first += as_double(place.requests - place.misses) / bytes;
      columns[i].second += as_double(place.misses) / bytes;
    }
  }
  if (study.places.empty()) return "";
  return strip("Memory that was registered, by address: hits and misses of each byte", columns,
               text("%" PRIx64, study.places.front().begin), text("%" PRIx64, study.places.back().end));
}

std::string reasons_picture(const Study& study) {
  std::vector<Bar> all;
  for (const uint32_t reason : tools::reasons_of(study.misses))
    all.push_back({pinrail_miss_reason_text(reason),
                   text("%" PRIu64 " misses, %" PRIu64 " pages", study.misses[reason], study.pages[reason]),
                   as_double(study.misses[reason])});
  return bars("Why requests miss an exact cache without a limit", all);
}

std::string trials_table(const Advised& advised, const perf::CostModel& cost) {
  std::string out =
      "<table><tr><th>setting</th><th>hits</th><th>calls</th><th>pages</th><th>refused</th><th>cost, ms</th></tr>\n";
  for (const std::vector<Trial>* trials : {&advised.settings, &advised.limits}) {
    for (const Trial& trial : *trials)
      out += text("<tr><td>%s%s</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%" PRIu64
                  "</td><td>%.2f</td></tr>\n",
                  trial.limit != 0 ? "size_limit " : "", trial.name.c_str(), trial.figures.stats.hits,
                  trial.figures.device.calls, trial.figures.device.pages, trial.figures.refused, trial.cost_ms(cost));
  }
  return out + "</table>\n";
}

std::string places_table(const Study& study, const perf::CostModel& cost) {
  std::string out =
      "<table><tr><th>memory</th><th>size</th><th>requests</th><th>misses</th><th>pages</th><th>cost, ms</th></tr>\n";
  for (const Place& place : costliest(study, cost))
    out += text("<tr><td>%" PRIx64 "</td><td>%s</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%" PRIu64
                "</td><td>%.2f</td></tr>\n",
                place.begin, size_text(place.end - place.begin).c_str(), place.requests, place.misses, place.pages,
                cost.ms(place.misses, place.pages));
  return out + "</table>\n";
}

std::string section(const Advised& advised, const perf::CostModel& cost) {
  std::string out =
      "<h2>" + escaped(tools::name_of_trace(advised.file)) + "</h2>\n<p>" + escaped(advised.program) + "</p>\n<ul>\n";
  for (const std::string& sentence : sentences_of(advised, cost)) out += "<li>" + escaped(sentence) + "</li>\n";
  return out + "</ul>\n" + limits_picture(advised) + time_picture(advised) + map_picture(advised.study) +
         reasons_picture(advised.study) + "<h3>What was tried</h3>\n" + trials_table(advised, cost) +
         "<h3>The costliest memory, if the cache is exact</h3>\n" + places_table(advised.study, cost);
}

}  // namespace

std::string page_of(const std::vector<Advised>& all, const perf::CostModel& cost) {
  std::string out = kHead;
  out += "<h1>What registration costs, and what to set</h1>\n";
  out += text(
      "<p>Pinrail %s, pool %s. Costs are those of a device that takes %g ns a register call and %g ns a page.</p>\n",
      pinrail_version(), escaped(all[0].pool.pool).c_str(), cost.call_ns, cost.page_ns);
  for (const Advised& each : all) out += section(each, cost);
  out += "<h2>Parameters</h2>\n<p>For $HOME/.pinrail/mca-params.conf:</p>\n<pre>" + escaped(parameters_of(all, cost)) +
         "</pre>\n</body>\n</html>\n";
  return out;
}

}  // namespace pinrail::advise
