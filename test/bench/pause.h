// SPDX-License-Identifier: BSD-3-Clause
// pause.h - how long the slowest hits of one thread take while another thread invalidates everything else.
#ifndef PINRAIL_TEST_BENCH_PAUSE_H
#define PINRAIL_TEST_BENCH_PAUSE_H

#include <array>
#include <cstdint>
#include <functional>

namespace pinrail::bench {

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
