// SPDX-License-Identifier: BSD-3-Clause
// resident.h - how much memory without a file behind it this process has touched.
#ifndef PINRAIL_TEST_BENCH_RESIDENT_H
#define PINRAIL_TEST_BENCH_RESIDENT_H

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/bench/fail.h"

namespace pinrail::bench {

// RssAnon and RssShmem of /proc/self/status, in bytes: heap and anonymous mappings, private and shared.
inline double resident_bytes() {
  FILE* const file = fopen("/proc/self/status", "re");
  if (file == nullptr) fail("/proc/self/status cannot be read");
  double kilobytes = 0;
  char line[256];
  while (fgets(line, sizeof(line), file) != nullptr)
    if (strncmp(line, "RssAnon:", 8) == 0 || strncmp(line, "RssShmem:", 9) == 0)
      kilobytes += strtod(strchr(line, ':') + 1, nullptr);
  fclose(file);
  return kilobytes * 1024;
}

}  // namespace pinrail::bench

#endif
