// SPDX-License-Identifier: BSD-3-Clause
// team.h - threads that run at the same time, each on a processor of its own, and whether this machine lets them; and
// how long the slowest hits of one thread take while another thread invalidates everything else.
#ifndef PINRAIL_TEST_BENCH_TEAM_H
#define PINRAIL_TEST_BENCH_TEAM_H

#include <sched.h>

#include <array>
#include <cstdint>
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

// Counts durations in ticks: exactly below 1,024, above that in sixteen steps to each power of two.
class Histogram {
 public:
  void add(uint64_t duration) {
    ++counts_[bucket(duration)];
    ++total_;
    if (duration > longest_) longest_ = duration;
  }
  uint64_t total() const { return total_; }
  uint64_t longest() const { return longest_; }
  // The least duration that this share of all does not exceed, rounded up to its bucket's end.
  uint64_t quantile(double share) const;

 private:
  static size_t bucket(uint64_t duration) {
    if (duration < 1024) return duration;
    const unsigned high = 63 - static_cast<unsigned>(__builtin_clzll(duration));
    return 1024 + (high - 10) * 16 + (duration >> (high - 4) & 15);
  }
  static uint64_t end_of(size_t bucket);

  std::array<uint64_t, 1024 + 54 * 16> counts_{};
  uint64_t total_ = 0;
  uint64_t longest_ = 0;
};

struct Pause {
  double longest_ns;
  double p9999_ns;  // 99.99 % of the hits took no longer
  uint64_t hits;
  double event_ns;  // how long the event itself took
};

// One thread calls hit() again and again; after 20 ms another one calls event(), and 150 ms after its return (what is
// left for later is done by then) both end. Reading the clock is part of each duration.
Pause measure_pause(const std::function<void(Histogram&, const std::function<bool()>&)>& hit_until,
                    const std::function<void()>& event);

}  // namespace pinrail::bench

#endif
