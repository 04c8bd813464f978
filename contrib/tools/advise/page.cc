// SPDX-License-Identifier: BSD-3-Clause
// page.cc - what follows from the figures, in sentences; and one HTML file with the advice, the pictures and the
// parameters.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <map>

#include "contrib/tools/advise/study.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/perf/basics.h"

namespace pinrail::advise {

using tools::percent;
using tools::size_text;
using tools::text;

namespace {

std::string time_text(uint64_t ns) {
  const double ms = static_cast<double>(ns) / 1e6;
  return ms < 1000 ? text("%.3g ms", ms) : text("%.3g s", ms / 1000);
}

std::string first_sentence(const Advised& advised, const perf::CostModel& cost) {
  const Trial& now = advised.settings[0];
  const Trial& exact = advised.settings[1];
  return text("As it is set, %" PRIu64 " requests cause %" PRIu64 " register calls of %" PRIu64
              " pages, which cost %.2f ms on a device that takes %g ns a call and %g ns a page; a pool that registers "
              "exactly what is asked for: %" PRIu64 " calls, %" PRIu64 " pages, %.2f ms.",
              now.figures.calls, now.figures.device.calls, now.figures.device.pages, now.cost_ms(cost), cost.call_ns,
              cost.page_ns, exact.figures.device.calls, exact.figures.device.pages, exact.cost_ms(cost));
}

std::string list_of(const tools::Pairs& settings) {
  std::string list;
  for (const auto& [name, value] : settings) list += (list.empty() ? "" : " and ") + name + " = " + value;
  return list;
}

std::string about_best(const Advised& advised, const perf::CostModel& cost) {
  const Trial& now = advised.settings[0];
  const Trial& best = best_of(advised, cost);
  if (&best == &now) return "None of the other settings that were tried costs less: leave them as they are.";
  const std::string set = list_of(best.wanted);
  return text("Set %s: the cost falls from %.2f to %.2f ms (%.0f %%).", set.empty() ? best.name.c_str() : set.c_str(),
              now.cost_ms(cost), best.cost_ms(cost), 100 * (1 - best.cost_ms(cost) / now.cost_ms(cost)));
}

// Empty: the trace is whole.
std::string about_missing(const Advised& advised) {
  return advised.trace.missing == 0 ? "" : perf::missing_text(advised.trace.missing) + ".";
}

// Empty: idle registrations are kept.
std::string about_kept(const Advised& advised) {
  if (advised.pool.leave_pinned != 0) return "";
  const std::string& why = advised.pool.why_not_kept;
  return "As it is set, nothing is kept registered: " + (why.empty() ? "mpool_grdma_leave_pinned is no" : why) + ".";
}

// Empty: nothing was set, or it is not known.
std::string about_recorded(const Advised& advised) {
  if (advised.recorded.empty()) return "";
  return "It was recorded with " + list_of(advised.recorded) +
         ", and so each replay here has it, where no --mca says else.";
}

// Empty: the limit in force evicts nothing. What the program asked to evict is no matter of the limit.
std::string about_limit_in_force(const Advised& advised) {
  const Trial& now = advised.settings[0];
  const uint64_t evictions = now.figures.stats.evictions - std::min(now.figures.stats.evictions, now.figures.evicted);
  if (now.figures.stats.size_limit == UINT64_MAX || (evictions == 0 && now.figures.refused == 0)) return "";
  return text("The limit in force, %s, is in the way: %" PRIu64 " registrations were evicted and %" PRIu64
              " requests refused. Without a limit at most %s would be registered at once; the limit of locked memory, "
              "\"ulimit -l\", must permit that, too.",
              size_text(now.figures.stats.size_limit).c_str(), evictions, now.figures.refused,
              size_text(most_registered(advised)).c_str());
}

// The least limit that costs no more than a fiftieth beside the largest one.
std::string about_limits(const Advised& advised, const perf::CostModel& cost) {
  const Trial& most = advised.limits.back();
  const auto enough = std::find_if(advised.limits.begin(), advised.limits.end(), [&](const Trial& trial) {
    return trial.cost_ms(cost) <= 1.02 * most.cost_ms(cost) && trial.figures.refused == 0;
  });
  const Trial& least = advised.limits.front();
  const Trial& chosen = enough == advised.limits.end() ? most : *enough;
  const perf::Replayed& now = advised.settings[0].figures;
  return text(
      "At most %s were registered at once. A size_limit of %s costs as little as any larger one, with %" PRIu64
      " calls; as it is set, there are %" PRIu64 ". With %s the calls are %" PRIu64 " instead of %" PRIu64
      "%s. A size_limit that is set keeps windows away (mpool_grdma_extent).",
      size_text(now.stats.peak_registered_bytes).c_str(), size_text(chosen.limit).c_str(), chosen.figures.device.calls,
      now.device.calls, size_text(least.limit).c_str(), least.figures.device.calls, most.figures.device.calls,
      least.figures.refused == 0 ? "" : text(", and %" PRIu64 " requests are refused", least.figures.refused).c_str());
}

const char* advice_for(uint32_t reason) {
  switch (reason) {
    case PINRAIL_MISS_COLD:
      return "they are the first of their memory, and only larger registrations (mpool_grdma_extent) save some";
    case PINRAIL_MISS_SPAN: return "a part of the range was registered; mpool_grdma_extent saves most";
    case PINRAIL_MISS_RIGHTS:
      return "the memory was registered with fewer rights; mpool_grdma_rights = all saves all of them";
    case PINRAIL_MISS_EVENT:
      return "the memory was unmapped and mapped again; let malloc keep it (MALLOC_MMAP_THRESHOLD_=1073741824 "
             "MALLOC_TRIM_THRESHOLD_=1073741824 in the environment), or reuse buffers";
    default: return "the program asks that they bypass the cache";
  }
}

void add_reasons(const Study& study, std::vector<std::string>* out) {
  for (const uint32_t reason : tools::reasons_of(study.pages))
    out->push_back(text("%" PRIu64 " of %" PRIu64 " misses (%s, %" PRIu64 " pages) have the reason \"%s\": %s.",
                        study.misses[reason], study.all_misses(),
                        percent(study.misses[reason], study.all_misses()).c_str(), study.pages[reason],
                        pinrail_miss_reason_text(reason), advice_for(reason)));
}

std::string about_lives(const Study& study) {
  uint64_t once = 0, by_event = 0;
  std::vector<uint64_t> ages;
  for (const Life& life : study.lives) {
    once += life.uses == 1 ? 1 : 0;
    by_event += life.by_event ? 1 : 0;
    ages.push_back(life.died_ns - life.born_ns);
  }
  if (ages.empty()) return "Nothing was registered by a cache.";
  const auto middle = ages.begin() + static_cast<std::ptrdiff_t>(ages.size() / 2);
  std::nth_element(ages.begin(), middle, ages.end());
  return text(
      "Of %zu registrations %s served one request only, and %s were ended by a memory event; half of them lived "
      "less than %s.",
      ages.size(), percent(once, ages.size()).c_str(), percent(by_event, ages.size()).c_str(),
      time_text(*middle).c_str());
}

std::string about_places(const Study& study, const perf::CostModel& cost) {
  const std::vector<Place> top = costliest(study, cost);
  if (top.empty()) return "";
  const Place& place = top.front();
  return text("The costliest memory is %" PRIx64 " to %" PRIx64 " (%s): %" PRIu64 " requests, %" PRIu64
              " misses of %" PRIu64 " pages, %.2f ms.",
              place.begin, place.end, size_text(place.end - place.begin).c_str(), place.requests, place.misses,
              place.pages, cost.ms(place.misses, place.pages));
}

}  // namespace

const Trial& best_of(const Advised& advised, const perf::CostModel& cost) {
  const auto least =
      std::min_element(advised.settings.begin(), advised.settings.end(),
                       [&](const Trial& a, const Trial& b) { return a.cost_ms(cost) < b.cost_ms(cost); });
  const Trial& now = advised.settings[0];
  return least->cost_ms(cost) < 0.98 * now.cost_ms(cost) ? *least : now;
}

std::vector<std::string> sentences_of(const Advised& advised, const perf::CostModel& cost) {
  std::vector<std::string> out = {
      about_missing(advised),        about_recorded(advised),   first_sentence(advised, cost), about_kept(advised),
      about_limit_in_force(advised), about_best(advised, cost), about_limits(advised, cost)};
  out.erase(std::remove(out.begin(), out.end(), ""), out.end());
  add_reasons(advised.study, &out);
  out.push_back(about_lives(advised.study));
  out.push_back(about_places(advised.study, cost));
  if (out.back().empty()) out.pop_back();
  return out;
}

std::vector<Place> costliest(const Study& study, const perf::CostModel& cost) {
  std::vector<Place> top = study.places;
  std::sort(top.begin(), top.end(),
            [&](const Place& a, const Place& b) { return cost.ms(a.misses, a.pages) > cost.ms(b.misses, b.pages); });
  if (top.size() > 10) top.resize(10);
  return top;
}

// What is best for one trace is set only if it is best for all: a trial of the same name costs least in the sum.
std::string parameters_of(const std::vector<Advised>& all, const perf::CostModel& cost) {
  std::string out = "# pinrail_advise: for";
  for (const Advised& each : all) out += " " + tools::name_of_trace(each.file);
  out += text("\n# model: %g ns a call, %g ns a page\n", cost.call_ns, cost.page_ns);
  std::map<size_t, double> sums;
  for (const Advised& each : all)
    for (size_t i = 0; i < each.settings.size(); i++) sums[i] += each.settings[i].cost_ms(cost);
  const auto least =
      std::min_element(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const Trial& best = all[0].settings[least->first];
  if (least->second >= 0.98 * sums[0] || best.wanted.empty())
    return out + "# nothing to set: what is set costs least\n";
  out += text("# cost %.2f ms instead of %.2f\n", least->second, sums[0]);
  for (const auto& [name, value] : best.wanted) out += name + " = " + value + "\n";
  return out;
}

// Pictures for a page.

using perf::text;

namespace {

constexpr double kWidth = 830, kHeight = 260, kLeft = 160, kTop = 34, kRight = 20, kBottom = 46;
constexpr double kAcross = kWidth - kLeft - kRight, kDown = kHeight - kTop - kBottom;

std::string begin(const std::string& title, double height) {
  return text("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", kWidth, height, escaped(title).c_str()) +
         text("<text x=\"%g\" y=\"18\" class=\"title\">%s</text>\n", kLeft, escaped(title).c_str());
}

std::string label(double x, double y, const char* anchor, const std::string& words) {
  return text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, escaped(words).c_str());
}

// The position of a value on an axis of this length.
double scaled(double value, double most, double length) {
  return most > 0 && std::isfinite(value) ? std::clamp(value / most, 0.0, 1.0) * length : 0;
}

std::string path_of(const Line& line, const Axes& axes) {
  std::string path;
  double last_y = 0;
  for (const auto& [x, y] : line.points) {
    const double px = kLeft + scaled(x, axes.x_most, kAcross), py = kTop + kDown - scaled(y, axes.y_most, kDown);
    if (path.empty())
      path = text("M%.1f %.1f", px, py);
    else
      path += line.style == Line::steps ? text("L%.1f %.1fL%.1f %.1f", px, last_y, px, py) : text("L%.1f %.1f", px, py);
    last_y = py;
  }
  return text("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>\n", path.c_str(), line.colour.c_str());
}

std::string dots_of(const Line& line, const Axes& axes) {
  std::string out;
  for (const auto& [x, y] : line.points)
    out += text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", kLeft + scaled(x, axes.x_most, kAcross),
                kTop + kDown - scaled(y, axes.y_most, kDown), line.colour.c_str());
  return out;
}

std::string frame(const Axes& axes) {
  return text("<path d=\"M%g %gV%gH%g\" fill=\"none\" stroke=\"#888\"/>\n", kLeft, kTop, kTop + kDown,
              kLeft + kAcross) +
         label(kLeft - 6, kTop + 8, "end", axes.y_text) + label(kLeft - 6, kTop + kDown, "end", "0") +
         label(kLeft + kAcross, kTop + kDown + 16, "end", axes.x_text) +
         label(kLeft, kTop + kDown + 16, "middle", "0") +
         label(kLeft + kAcross / 2, kTop + kDown + 16, "middle", axes.x) + label(4, kTop + kDown / 2, "start", axes.y);
}

}  // namespace

std::string escaped(const std::string& words) {
  std::string out;
  for (const char letter : words) {
    switch (letter) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += letter == '\n' || (letter >= ' ' && letter <= '~') ? letter : '?';
    }
  }
  return out;
}

std::string chart(const Axes& axes, const std::vector<Line>& lines) {
  std::string out = begin(axes.title, kHeight) + frame(axes);
  double x = kLeft;
  for (const Line& line : lines) {
    out += line.style == Line::dots ? dots_of(line, axes) : path_of(line, axes);
    out += text("<rect x=\"%g\" y=\"%g\" width=\"10\" height=\"10\" fill=\"%s\"/>\n", x, kHeight - 14,
                line.colour.c_str());
    out += label(x + 14, kHeight - 5, "start", line.name);
    x += 30 + 7.0 * static_cast<double>(line.name.size());
  }
  return out + "</svg>\n";
}

std::string bars(const std::string& title, const std::vector<Bar>& all) {
  constexpr double kRow = 24, kMost = 380;
  double most = 0;
  for (const Bar& bar : all) most = std::max(most, bar.value);
  std::string out = begin(title, kTop + kRow * static_cast<double>(all.size()) + 8);
  double y = kTop;
  for (const Bar& bar : all) {
    const double width = scaled(bar.value, most, kMost);
    out += label(kLeft - 6, y + 14, "end", bar.name);
    out += text("<rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"16\" fill=\"#4878a8\"/>\n", kLeft, y + 2, width);
    out += label(kLeft + width + 6, y + 14, "start", bar.words);
    y += kRow;
  }
  return out + "</svg>\n";
}

std::string strip(const std::string& title, const std::vector<std::pair<double, double>>& columns,
                  const std::string& from, const std::string& to) {
  constexpr double kHalf = 60;
  double most_hits = 0, most_misses = 0;
  for (const auto& [hits, misses] : columns) {
    most_hits = std::max(most_hits, hits);
    most_misses = std::max(most_misses, misses);
  }
  std::string out = begin(title, kTop + 2 * kHalf + 26);
  const double width = kAcross / static_cast<double>(std::max<size_t>(columns.size(), 1)), middle = kTop + kHalf;
  double x = kLeft;
  for (const auto& [hits, misses] : columns) {
    const double up = scaled(hits, most_hits, kHalf), down = scaled(misses, most_misses, kHalf);
    if (up > 0)
      out += text("<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"#3a9a5b\"/>\n", x, middle - up,
                  width, up);
    if (down > 0)
      out += text("<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"#c0504d\"/>\n", x, middle, width,
                  down);
    x += width;
  }
  out += text("<path d=\"M%g %gH%g\" stroke=\"#888\"/>\n", kLeft, middle, kLeft + kAcross);
  out += label(kLeft - 6, kTop + 10, "end", "hits") + label(kLeft - 6, kTop + 2 * kHalf, "end", "misses");
  out += label(kLeft, kTop + 2 * kHalf + 18, "start", from) + label(kLeft + kAcross, kTop + 2 * kHalf + 18, "end", to);
  return out + "</svg>\n";
}

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
