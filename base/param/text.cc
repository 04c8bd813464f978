// SPDX-License-Identifier: BSD-3-Clause
// Any thread; start-up or API context, no lock.
#include "base/param/text.h"

#include <algorithm>

namespace pinrail::param {
namespace {

constexpr std::string_view kSpace = " \t\r\n\v\f";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

bool is_name(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_name_letter); }

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t end = text.find_first_of(separators);
    const std::string_view piece = trim(text.substr(0, end));
    if (!piece.empty()) pieces.push_back(piece);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return pieces;
}

namespace {

// No parameter's name is that long, and a longer text would cost the square of its length.
constexpr size_t kLongestName = 256;

constexpr size_t kMaxSlips = 3;

size_t slips_allowed(size_t length) { return std::clamp<size_t>(length / 4, 1, kMaxSlips); }

size_t difference(size_t a, size_t b) { return a > b ? a - b : b - a; }

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the usual table: row[j] is the distance of a's first i letters to b's first j. A swap needs the row before
  // the last.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view suggest(std::string_view name, const std::vector<std::string_view>& candidates) {
  std::string_view nearest;
  if (name.empty() || name.size() > kLongestName) return nearest;
  size_t least = std::min(slips_allowed(name.size()), name.size() - 1) + 1;
  for (const std::string_view candidate : candidates) {
    if (difference(candidate.size(), name.size()) >= least) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& names, std::string_view advice) {
  const std::string_view near = suggest(name, names);
  return near.empty() ? std::string(advice) : "did you mean " + std::string(near) + "?";
}

}  // namespace pinrail::param
