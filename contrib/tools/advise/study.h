// SPDX-License-Identifier: BSD-3-Clause
// study.h - what a trace says by itself: why requests miss a cache without a limit, how long registrations live, how
// large a cache must be; and what it costs with one setting after the other.
//
// Threads  one at a time.
//
// The cache of the study is an exact pool without a limit: a request hits the registration of most rights that contains
// it, and a miss registers its pages with its rights and those of what contains it. Its misses are those of
// pinrail_perf --trace FILE --exact. A distance is the sum of the bytes of all registrations that were used since the
// last use of this one, its own included: an LRU cache of at least so many bytes has it still. What an event has ended
// counts no more.
#ifndef PINRAIL_CONTRIB_TOOLS_ADVISE_STUDY_H
#define PINRAIL_CONTRIB_TOOLS_ADVISE_STUDY_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "contrib/tools/common/program.h"
#include "contrib/tools/perf/replay.h"
#include "contrib/tools/perf/trace.h"

namespace pinrail::advise {

struct Life {
  uint64_t begin, end;  // the range
  uint64_t born_ns, died_ns;
  uint64_t uses;  // requests that it served, the first one included
  bool by_event;  // an event ended it; else it lived to the end, or a larger one took its place
};

// Registrations whose pages touch or overlap.
struct Place {
  uint64_t begin, end;
  uint64_t requests, misses, pages;  // pages: of all registrations
};

struct Study {
  uint64_t requests = 0, hits = 0, events = 0;
  uint64_t peak_bytes = 0;  // registered at once
  // Of five reasons: cold; span; rights; event: an event has ended what contained a part of it; bypass.
  tools::Misses misses{}, pages{};
  std::vector<uint64_t> distances;  // of the hits, ascending, in bytes
  std::vector<Life> lives;
  std::vector<Place> places;  // ascending

  uint64_t all_misses() const;
  uint64_t misses_of_lru(uint64_t limit_bytes) const;
};

Study study(const perf::Trace& trace, uint64_t page_bytes);

// A trace replayed through real pools with one setting after the other: what advice is measured by.
//
// Threads  one at a time.
//
// A trial's figures are those that pinrail_perf --trace FILE --registrar none prints with its setting.
struct Trial {
  std::string name;     // "exact"
  tools::Pairs wanted;  // the parameters that differ from what is set
  uint64_t limit = 0;   // bytes; 0: as set
  perf::Replayed figures;

  double cost_ms(const perf::CostModel& cost) const { return cost.ms(figures.device.calls, figures.device.pages); }
};

struct Advised {
  std::string file, program;
  tools::Pairs recorded;  // what was set where it was recorded; each replay has it, unless the command line says else
  perf::Trace trace;
  perf::PoolFacts pool;
  Study study;
  std::vector<Trial> settings;  // the first: as it is set; the second: exact
  std::vector<Trial> limits;    // ascending
};

// Bytes at once, where no limit is in the way.
uint64_t most_registered(const Advised& advised);

// Reads the file, replays it with each setting and each limit, and studies it.
perf::Result try_all(const perf::Options& options, const std::string& file, Advised* advised_out);

// What follows from the figures, in sentences and as a page, and the parameters to set.

// The trial that costs least; the first one if none costs less by more than a fiftieth.
const Trial& best_of(const Advised& advised, const perf::CostModel& cost);

// Each sentence stands for itself.
std::vector<std::string> sentences_of(const Advised& advised, const perf::CostModel& cost);

// The ten places whose registrations cost most, the costliest first.
std::vector<Place> costliest(const Study& study, const perf::CostModel& cost);

// Lines for $HOME/.pinrail/mca-params.conf.
std::string parameters_of(const std::vector<Advised>& all, const perf::CostModel& cost);

std::string page_of(const std::vector<Advised>& all, const perf::CostModel& cost);

// Pictures for a page: lines over two axes, bars, and a strip.

// `<`, `&` and quotes as entities; bytes that are no printable ASCII as '?': names come from files.
std::string escaped(const std::string& text);

struct Line {
  std::string name, colour;
  std::vector<std::pair<double, double>> points;
  enum Style { joined, steps, dots } style;
};

struct Axes {
  std::string title, x, y;     // what the axes show
  double x_most, y_most;       // both begin at 0
  std::string x_text, y_text;  // the largest values, in words
};

std::string chart(const Axes& axes, const std::vector<Line>& lines);

struct Bar {
  std::string name, words;  // the words stand behind the bar
  double value;
};
std::string bars(const std::string& title, const std::vector<Bar>& all);

// Columns side by side: the height of the first colour is hits, of the second misses, both in shares of the largest.
std::string strip(const std::string& title, const std::vector<std::pair<double, double>>& columns,
                  const std::string& from, const std::string& to);

}  // namespace pinrail::advise

#endif
