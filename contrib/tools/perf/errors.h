// SPDX-License-Identifier: BSD-3-Clause
// errors.h - counts errors that must never happen, and prints the first few.
//
// Threads  one thread at a time.
#ifndef PINRAIL_TOOLS_PERF_ERRORS_H
#define PINRAIL_TOOLS_PERF_ERRORS_H

#include <cstdint>
#include <cstdio>
#include <string>

namespace pinrail::perf {

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

}  // namespace pinrail::perf

#endif
