// SPDX-License-Identifier: BSD-3-Clause
// svg.cc - pictures for a page.
#include "contrib/tools/advise/svg.h"

#include <algorithm>
#include <cmath>

#include "contrib/tools/perf/basics.h"

namespace pinrail::advise {

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

}  // namespace pinrail::advise
