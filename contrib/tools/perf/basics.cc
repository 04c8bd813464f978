// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/perf/basics.h"

#include <pinrail/listing.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

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

int64_t bytes_of_line(const char* path, const char* name) {
  FILE* file = fopen(path, "re");
  if (file == nullptr) return -1;
  int64_t bytes = -1;
  char line[256];
  const size_t length = strlen(name);
  while (bytes < 0 && fgets(line, sizeof(line), file) != nullptr)
    if (strncmp(line, name, length) == 0 && line[length] == ':') bytes = strtoll(line + length + 1, nullptr, 10) * 1024;
  fclose(file);
  return bytes;
}

}  // namespace

std::thread start_thread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& lack) {
    fprintf(stderr, "pinrail_perf: the system gives no further thread: %s\n", lack.what());
    _exit(1);
  }
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

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

int64_t status_bytes(const char* name) { return bytes_of_line("/proc/self/status", name); }

size_t available_memory() {
  const int64_t bytes = bytes_of_line("/proc/meminfo", "MemAvailable");
  return bytes < 0 ? SIZE_MAX : static_cast<size_t>(bytes);
}

int64_t huge_bytes() { return bytes_of_line("/proc/self/smaps_rollup", "AnonHugePages"); }

uint64_t memlock_limit() {
  static const uint64_t limit = [] {
    pinrail_machine_t machine{};
    machine.size = sizeof(machine);
    return pinrail_machine_read(&machine) == PINRAIL_SUCCESS ? machine.locked_limit : UINT64_MAX;
  }();
  return limit;
}

}  // namespace pinrail::perf
