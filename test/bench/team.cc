// SPDX-License-Identifier: BSD-3-Clause
// team.cc - pinned threads behind one barrier; a thread that hits, and one that invalidates.
#include "test/bench/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "test/bench/measure.h"

namespace pinrail::bench {

namespace {

struct alignas(128) Own {
  std::atomic<uint64_t> word{0};
  double start = 0;
  double end = 0;
};

void stay_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

int nth_processor(unsigned nth) { return processors()[nth % processors().size()]; }

std::vector<int> find_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> found;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) found.push_back(i);
  return found;
}

}  // namespace

const std::vector<int>& processors() {
  static const std::vector<int> all = find_processors();
  return all;
}

Pinned::Pinned(unsigned nth) {
  processors();  // asked for the first time, it must see the mask of the process
  sched_getaffinity(0, sizeof(before_), &before_);
  stay_on(nth_processor(nth));
}

Pinned::~Pinned() { sched_setaffinity(0, sizeof(before_), &before_); }

double run_team(unsigned threads, const std::function<void(unsigned)>& warm_up,
                const std::function<void(unsigned)>& body) {
  processors();
  std::vector<Own> own(threads);
  std::atomic<unsigned> waiting{threads};
  std::vector<std::thread> team;
  for (unsigned i = 0; i < threads; ++i) {
    team.emplace_back([&, i] {
      stay_on(nth_processor(i));
      warm_up(i);
      waiting.fetch_sub(1);
      while (waiting.load() != 0) {
      }
      own[i].start = now_ns();
      body(i);
      own[i].end = now_ns();
    });
  }
  for (std::thread& thread : team) thread.join();
  double first = own[0].start, last = own[0].end;
  for (const Own& one : own) {
    first = std::min(first, one.start);
    last = std::max(last, one.end);
  }
  return last - first;
}

double machine_scaling(unsigned threads) {
  constexpr int kAdds = 2000000;
  std::vector<Own> own(threads);
  const auto nothing = [](unsigned) {};
  const auto add = [&](unsigned i) {
    for (int n = 0; n < kAdds; ++n) own[i].word.fetch_add(1);
  };
  const double alone = run_team(1, nothing, add);
  return threads * alone / run_team(threads, nothing, add);
}

// The word goes to and fro: thread i waits for an odd or an even number, and answers with the next one.
double line_transfer_ns() {
  constexpr uint64_t kTransfers = 20000;
  if (processors().size() < 2) return 0;
  Own ball;
  const auto pass = [&](unsigned i) {
    for (uint64_t n = i; n < kTransfers; n += 2) {
      while (ball.word.load() != n) {
      }
      ball.word.store(n + 1);
    }
  };
  return run_team(
             2, [](unsigned) {}, pass) /
         kTransfers;
}

bool is_quiet(unsigned threads) {
  const double scaling = machine_scaling(threads) / threads;
  return scaling >= 0.925 && scaling <= 1.075;
}

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
