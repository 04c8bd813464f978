// SPDX-License-Identifier: BSD-3-Clause
// words.h - what follows from the figures, in sentences and as a page, and the parameters to set.
#ifndef PINRAIL_CONTRIB_TOOLS_ADVISE_WORDS_H
#define PINRAIL_CONTRIB_TOOLS_ADVISE_WORDS_H

#include <string>
#include <utility>
#include <vector>

#include "contrib/tools/advise/study.h"

namespace pinrail::advise {

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
