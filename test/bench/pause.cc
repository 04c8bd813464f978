// SPDX-License-Identifier: BSD-3-Clause
// pause.cc - the two threads, and the quantiles of what the first one saw.
#include "test/bench/pause.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "test/bench/clock.h"
#include "test/bench/team.h"

namespace pinrail::bench {

namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

double ns_per_tick() {
  static const double measured = [] {
    const double start = now_ns();
    const uint64_t start_ticks = ticks();
    sleep_ms(20);
    return (now_ns() - start) / static_cast<double>(ticks() - start_ticks);
  }();
  return measured;
}

uint64_t Histogram::end_of(size_t bucket) {
  if (bucket < 1024) return bucket;
  const size_t high = (bucket - 1024) / 16 + 10;
  const uint64_t step = (bucket - 1024) % 16;
  return ((16 + step + 1) << (high - 4)) - 1;
}

uint64_t Histogram::quantile(double share) const {
  const uint64_t wanted = static_cast<uint64_t>(share * static_cast<double>(total_));
  uint64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen > wanted) return end_of(i) < longest_ ? end_of(i) : longest_;
  }
  return longest_;
}

Pause measure_pause(const std::function<void(Histogram&, const std::function<bool()>&)>& hit_until,
                    const std::function<void()>& event) {
  Histogram histogram;
  std::atomic<bool> stop{false};
  const double tick = ns_per_tick();
  processors();  // before a pinned thread asks
  std::thread hitter([&] {
    const Pinned pinned(1);
    hit_until(histogram, [&] { return stop.load(std::memory_order_relaxed); });
  });
  double took;
  {
    const Pinned pinned(0);
    sleep_ms(20);
    const double start = now_ns();
    event();
    took = now_ns() - start;
    sleep_ms(150);
  }
  stop = true;
  hitter.join();
  return {static_cast<double>(histogram.longest()) * tick, static_cast<double>(histogram.quantile(0.9999)) * tick,
          histogram.total(), took};
}

}  // namespace pinrail::bench
