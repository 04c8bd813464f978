// SPDX-License-Identifier: BSD-3-Clause
// progress.h - a progress line on a terminal, for steps of more than a second; erased at the end.
//
// Threads  one thread at a time.
#ifndef PINRAIL_TOOLS_PERF_PROGRESS_H
#define PINRAIL_TOOLS_PERF_PROGRESS_H

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "contrib/tools/perf/clock.h"

namespace pinrail::perf {

class Progress {
 public:
  Progress() : terminal_(isatty(STDERR_FILENO) == 1), start_ns_(now_ns()) {}
  ~Progress() { erase(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& what, uint64_t done, uint64_t total) {
    const uint64_t now = now_ns();
    if (!terminal_ || now - start_ns_ < kQuiet || now - shown_ns_ < kInterval) return;
    shown_ns_ = now;
    const unsigned percent = total == 0 ? 0 : static_cast<unsigned>(done * 100 / total);
    fprintf(stderr, "\r\033[K%s: %u %%", what.c_str(), percent);
    fflush(stderr);
  }

  void erase() {
    if (shown_ns_ == 0) return;
    fprintf(stderr, "\r\033[K");
    fflush(stderr);
    shown_ns_ = 0;
  }

 private:
  static constexpr uint64_t kQuiet = 1000000000, kInterval = 100000000;
  const bool terminal_;
  const uint64_t start_ns_;
  uint64_t shown_ns_ = 0;
};

}  // namespace pinrail::perf

#endif
