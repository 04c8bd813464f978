// SPDX-License-Identifier: BSD-3-Clause
// process.cc - what the kernel reports about this process and this machine.
#include "contrib/tools/perf/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pinrail::perf {

namespace {

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
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

}  // namespace pinrail::perf
