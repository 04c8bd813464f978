// SPDX-License-Identifier: BSD-3-Clause
// basics.h - what the other files of pinrail_perf build on: results, errors, texts, the clock, and what the kernel
// reports about this process and this machine.
//
// Threads  Errors and Progress are one thread's at a time; all else may run together.
#ifndef PINRAIL_TOOLS_PERF_BASICS_H
#define PINRAIL_TOOLS_PERF_BASICS_H

#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "contrib/tools/common/text.h"

namespace pinrail::perf {

// The result of a step: success, or a sentence for the user.
class [[nodiscard]] Result {
 public:
  static Result good() { return Result(std::string()); }
  static Result bad(std::string why) { return Result(why.empty() ? "unknown reason" : std::move(why)); }

  bool ok() const { return why_.empty(); }
  const std::string& why() const { return why_; }

 private:
  explicit Result(std::string why) : why_(std::move(why)) {}
  std::string why_;
};

using tools::percent;
using tools::size_text;
using tools::text;

// The text of errno.
std::string errno_text();

// "4K" is 4096; K, M and G in either case, no sign, not 0, at most 2^46.
Result parse_size(std::string_view typed, size_t* size_out);

// "4K,1M"; no empty items.
Result parse_size_list(std::string_view typed, std::vector<size_t>* sizes_out);

size_t page_size();
inline uint64_t round_down(uint64_t value, uint64_t step) { return value / step * step; }
inline uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

// The bytes of a line "Name:   123 kB" in /proc/self/status; -1 if there is none. Names: VmPin, VmLck.
int64_t status_bytes(const char* name);

// The bytes that can be allocated without swapping; SIZE_MAX if the kernel does not report them.
size_t available_memory();

// The bytes of anonymous memory on transparent huge pages; -1 if the kernel does not report them.
int64_t huge_bytes();

// What this user may lock, in bytes ("ulimit -l"); UINT64_MAX: any amount.
uint64_t memlock_limit();

// Starts a thread. Ends the program, with a line, where the system gives none: those that were started may wait for it.
std::thread start_thread(std::function<void()> work);

// CLOCK_MONOTONIC in nanoseconds.
inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Counts errors that must never happen, and prints the first few.
class Errors {
 public:
  void add(const std::string& what) {
    count_++;
    if (count_ <= kShown) fprintf(stderr, "pinrail_perf: error: %s\n", what.c_str());
    if (count_ == kShown) fprintf(stderr, "pinrail_perf: more errors are counted only\n");
  }
  uint64_t count() const { return count_; }

 private:
  static constexpr uint64_t kShown = 10;
  uint64_t count_ = 0;
};

// A progress line on a terminal, for steps of more than a second; erased at the end.
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
