// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/choice.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace pinrail::oracle {
namespace {

using tools::MemoryEvent;

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> found;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) found.push_back(word);
  return found;
}

bool takes_part(const MemoryEvent& event, const Options& options) {
  if (&event == options.mutant) return true;
  if (!options.events.empty()) {
    const std::vector<std::string> named = words(options.events);
    return std::find(named.begin(), named.end(), event.name) != named.end();
  }
  const bool is_raw = event.way() == tools::Way::raw && options.raw_calls;
  // Shared mappings of files on disk are not kept unless monitor_never names direct_write.
  const bool is_kept = event.kind != tools::MemoryKind::disk_file;
  return is_kept && (event.way() == tools::Way::libc || is_raw);
}

// Forks take a thousand times as long as others: only as many as are asked for.
bool is_costly(const Kind& kind) { return std::string("fork") == kind.event->name; }

}  // namespace

// What happens to files on disk is reported by no monitor, so there is no report to hide.
bool is_mutant(const MemoryEvent& event) {
  return event.pages == tools::Pages::replaced && event.kind != tools::MemoryKind::disk_file;
}

std::string unknown_event(const std::string& list) {
  for (const std::string& word : words(list)) {
    if (tools::find_memory_event(word) == nullptr) return "\"" + word + "\" is no event";
  }
  return words(list).empty() ? "the list is empty" : "";
}

Choice::Choice(const Options& options) : mutant_(options.mutant), wanted_(wanted(options.seconds)) {
  for (const MemoryEvent& event : tools::memory_events()) {
    if (!takes_part(event, options)) continue;
    const std::string why = tools::why_no_memory_event(event);
    if (why.empty()) {
      kinds_.push_back(std::make_unique<Kind>(&event));
    } else {
      lacking_.push_back({&event, why});
    }
  }
}

const Lacking* Choice::find_lacking(const MemoryEvent* event) const {
  for (const Lacking& lacking : lacking_) {
    if (lacking.event == event) return &lacking;
  }
  return nullptr;
}

uint64_t Choice::wanted(double seconds) {
  constexpr double kWanted = 1000, kFullRun = 600;
  return static_cast<uint64_t>(std::ceil(kWanted * std::min(1.0, seconds / kFullRun)));
}

// relaxed, here and in next(): a count that is a little old makes no difference.
Kind* Choice::most_behind() const {
  Kind* least = kinds_.front().get();
  for (const auto& kind : kinds_) {
    if (kind->is_never_cached()) continue;
    const bool is_less = kind->again.load(std::memory_order_relaxed) < least->again.load(std::memory_order_relaxed);
    if (is_less || least->is_never_cached()) least = kind.get();
  }
  return least;
}

bool Choice::is_behind() const {
  constexpr double kAhead = 1.25;  // of time, so that little is left for the end
  const Kind* const behind = most_behind();
  const auto happened = static_cast<double>(behind->again.load(std::memory_order_relaxed));
  return !behind->is_never_cached() &&
         happened < static_cast<double>(wanted_) * std::min(1.0, kAhead * share_.load(std::memory_order_relaxed));
}

Kind* Choice::next(Random* random) const {
  Kind* const behind = most_behind();
  if (mutant_ == nullptr && (*random)() % 8 != 0 && behind->again.load(std::memory_order_relaxed) < wanted_)
    return behind;
  Kind* drawn = kinds_[(*random)() % kinds_.size()].get();
  if (mutant_ != nullptr && (*random)() % 4 == 0) {
    for (const auto& kind : kinds_) drawn = kind->event == mutant_ ? kind.get() : drawn;
  }
  return is_costly(*drawn) ? kinds_.front().get() : drawn;
}

}  // namespace pinrail::oracle
