// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/text_width.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace pinrail::tools {
namespace {

constexpr size_t kUsualWidth = 100, kLeastWidth = 40, kMaxWidth = 1000;

void append_wrapped(const std::string& paragraph, const std::string& indent, std::string* out) {
  std::istringstream words(paragraph);
  std::string line = indent, word;
  while (words >> word) {
    const bool first = line.size() == indent.size();
    if (!first && line.size() + 1 + word.size() > text_width()) {
      *out += line + '\n';
      line = indent + word;
    } else {
      line += (first ? "" : " ") + word;
    }
  }
  *out += (line.size() > indent.size() ? line : "") + '\n';
}

}  // namespace

size_t text_width() {
  const char* const typed = secure_getenv("COLUMNS");  // NOLINT(concurrency-mt-unsafe): the program never sets it
  const long columns = typed != nullptr ? std::strtol(typed, nullptr, 10) : 0;
  if (columns <= 0) return kUsualWidth;
  return std::clamp(static_cast<size_t>(columns), kLeastWidth, kMaxWidth);
}

std::string wrapped(std::string_view text, std::string_view indent) {
  std::istringstream lines{std::string(text)};
  std::string out, line;
  while (std::getline(lines, line)) {
    if (!line.empty() && line.front() == ' ') {
      out += std::string(indent) + line + '\n';
    } else {
      append_wrapped(line, std::string(indent), &out);
    }
  }
  return out;
}

}  // namespace pinrail::tools
