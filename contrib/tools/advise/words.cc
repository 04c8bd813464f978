// SPDX-License-Identifier: BSD-3-Clause
// words.cc - what follows from the figures, in sentences.
#include "contrib/tools/advise/study.h"

#include <algorithm>
#include <cinttypes>
#include <map>

#include "contrib/tools/common/text.h"

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

// Empty: nothing was set, or it is not known.
std::string about_recorded(const Advised& advised) {
  if (advised.recorded.empty()) return "";
  return "It was recorded with " + list_of(advised.recorded) +
         ", and so each replay here has it, where no --mca says else.";
}

// Empty: the limit in force evicts nothing.
std::string about_limit_in_force(const Advised& advised) {
  const Trial& now = advised.settings[0];
  if (now.figures.stats.evictions == 0 && now.figures.refused == 0) return "";
  return text("The limit in force, %s, is in the way: %" PRIu64 " registrations were evicted and %" PRIu64
              " requests refused. Without a limit at most %s would be registered at once; the limit of locked memory, "
              "\"ulimit -l\", must permit that, too.",
              size_text(now.figures.stats.size_limit).c_str(), now.figures.stats.evictions, now.figures.refused,
              size_text(most_registered(advised)).c_str());
}

// The least limit that costs no more than a fiftieth beside the largest one.
std::string about_limits(const Advised& advised, const perf::CostModel& cost) {
  const Trial& most = advised.limits.back();
  const auto enough = std::find_if(advised.limits.begin(), advised.limits.end(), [&](const Trial& trial) {
    return trial.cost_ms(cost) <= 1.02 * most.cost_ms(cost) && trial.figures.refused == 0;
  });
  const Trial& least = advised.limits.front();
  return text(
      "At most %s were registered at once. A size_limit of %s costs as little as any larger one; with %s the calls are "
      "%" PRIu64 " instead of %" PRIu64 "%s. A size_limit that is set keeps windows away (mpool_grdma_extent).",
      size_text(advised.settings[0].figures.stats.peak_registered_bytes).c_str(),
      size_text(enough == advised.limits.end() ? most.limit : enough->limit).c_str(), size_text(least.limit).c_str(),
      least.figures.device.calls, most.figures.device.calls,
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
  std::vector<std::string> out = {about_recorded(advised), first_sentence(advised, cost), about_limit_in_force(advised),
                                  about_best(advised, cost), about_limits(advised, cost)};
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

}  // namespace pinrail::advise
