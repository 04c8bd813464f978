// SPDX-License-Identifier: BSD-3-Clause
// fail.h - the way out of a benchmark program that cannot go on: a figure that is wrong is worse than none.
#ifndef PINRAIL_TEST_BENCH_FAIL_H
#define PINRAIL_TEST_BENCH_FAIL_H

#include <cstdio>
#include <cstdlib>

namespace pinrail::bench {

[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const char* what, const char* which = "") {
  fprintf(stderr, "bench: %s%s%s\n", what, *which == 0 ? "" : ": ", which);
  std::_Exit(3);
}

}  // namespace pinrail::bench

#endif
