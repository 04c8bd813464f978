// SPDX-License-Identifier: BSD-3-Clause
// team.h - threads that run at the same time, each on a processor of its own, and whether this machine lets them.
#ifndef PINRAIL_TEST_BENCH_TEAM_H
#define PINRAIL_TEST_BENCH_TEAM_H

#include <sched.h>

#include <functional>
#include <vector>

namespace pinrail::bench {

// The processors that this process may use.
const std::vector<int>& processors();

// Keeps the calling thread on one processor until the end of the scope. Threads that a library starts meanwhile would
// inherit it, so caches are made outside of such a scope.
class Pinned {
 public:
  explicit Pinned(unsigned nth);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_;
};

// warm_up(thread) on each of these pinned threads, then all at once body(thread). Returns the nanoseconds from the
// first one's start to the last one's end.
double run_team(unsigned threads, const std::function<void(unsigned)>& warm_up,
                const std::function<void(unsigned)>& body);

// How much more that many threads do than one, when each adds to a word of its own. On a quiet machine with as many
// processors it is their number; fewer: other programs are using them, or they share a core.
double machine_scaling(unsigned threads);

// Whether machine_scaling() is within 7.5 % of what it should be (for two threads: 1.85 to 2.15).
bool is_quiet(unsigned threads);

// How long a cache line takes from one processor to another, in nanoseconds: what threads that change the same data pay
// for each line of it. 0: there is one processor.
double line_transfer_ns();

}  // namespace pinrail::bench

#endif
