// SPDX-License-Identifier: BSD-3-Clause
// svg.h - pictures for a page: lines over two axes, bars, and a strip.
#ifndef PINRAIL_TOOLS_ADVISE_SVG_H
#define PINRAIL_TOOLS_ADVISE_SVG_H

#include <string>
#include <utility>
#include <vector>

namespace pinrail::advise {

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
