// SPDX-License-Identifier: BSD-3-Clause
// text.cc - parses and formats sizes and numbers.
#include "contrib/tools/perf/text.h"

#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace pinrail::perf {

namespace {

constexpr size_t kLargestSize = size_t{1} << 46;  // bytes; sums of such sizes do not overflow

unsigned shift_of(char suffix) {
  switch (suffix) {
    case 'k':
    case 'K': return 10;
    case 'm':
    case 'M': return 20;
    case 'g':
    case 'G': return 30;
    default: return 0;
  }
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

std::string errno_text() {
  char room[128] = "";
#ifdef __GLIBC__
  return strerror_r(errno, room, sizeof(room));
#else
  strerror_r(errno, room, sizeof(room));
  return room;
#endif
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

Result parse_size(std::string_view typed, size_t* size_out) {
  const unsigned shift = typed.empty() ? 0 : shift_of(typed.back());
  const char* const last = typed.data() + typed.size() - (shift != 0 ? 1 : 0);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(typed.data(), last, number);
  const bool is_number = error != std::errc::invalid_argument && end == last && (error != std::errc() || number != 0);
  if (!is_number) return Result::bad("'" + std::string(typed) + "' is not a size such as 4096, 64K, 4M or 1G");
  if (error != std::errc() || number > kLargestSize >> shift)
    return Result::bad("'" + std::string(typed) + "' is too large");
  *size_out = static_cast<size_t>(number) << shift;
  return Result::good();
}

Result parse_size_list(std::string_view typed, std::vector<size_t>* sizes_out) {
  std::vector<size_t> sizes;
  for (;;) {
    const size_t comma = typed.find(',');
    size_t size = 0;
    Result parsed = parse_size(typed.substr(0, comma), &size);
    if (!parsed.ok()) return parsed;
    sizes.push_back(size);
    if (comma == std::string_view::npos) break;
    typed.remove_prefix(comma + 1);
  }
  *sizes_out = std::move(sizes);
  return Result::good();
}

}  // namespace pinrail::perf
