// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
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

std::string text(const char* format, ...) {
  va_list list;
  va_start(list, format);
  va_list again;
  va_copy(again, list);
  const int length = vsnprintf(nullptr, 0, format, list);
  va_end(list);
  std::string out(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

std::string size_text(uint64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes == UINT64_MAX) return "unlimited";
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    unit++;
  }
  const bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return text(whole ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string percent(uint64_t part, uint64_t whole) {
  return text("%.1f %%", whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string what_happened(const std::string& messages) {
  constexpr std::string_view kBegin = "What happened  ";
  const size_t begin = messages.rfind(kBegin);
  if (begin == std::string::npos) return "";
  const size_t end = messages.find('\n', begin);
  std::string sentence = messages.substr(begin + kBegin.size(), end - begin - kBegin.size());
  if (!sentence.empty() && sentence.back() == '.') sentence.pop_back();
  return sentence;
}

std::string name_of_trace(const std::string& file) {
  std::string name = file.substr(file.rfind('/') + 1);
  for (char& c : name) c = static_cast<unsigned char>(c) < ' ' ? '?' : c;  // it stands in a line
  return name.substr(0, name.find(".trace"));
}

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
