// SPDX-License-Identifier: BSD-3-Clause
// scenario_alloc.cc - allocations of 64 bytes to 1 MiB on two threads: from the pool's slabs, from malloc, and by
// posix_memalign with a registration. Each replaces one of 64 objects at random.
#include <pinrail/alloc.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

constexpr size_t kHeld = 64;
constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE;

// What is done, made before the clock runs.
struct Step {
  uint32_t place;
  uint32_t length;
};

std::vector<Step> make_steps(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Step> steps(count);
  for (Step& step : steps) {
    const uint32_t largest = 64u << random() % 15;  // to 1 MiB
    step = {static_cast<uint32_t>(random() % kHeld), largest - static_cast<uint32_t>(random() % (largest / 2))};
  }
  return steps;
}

struct Object {
  void* at = nullptr;
  pinrail_handle_t handle{nullptr, 0};
};

struct FromPool {
  pinrail_mpool_t* pool;
  bool make(size_t length, Object* object) const {
    return pinrail_mpool_alloc(pool, length, 0, PINRAIL_NODE_ANY, &object->at) == PINRAIL_SUCCESS;
  }
  bool end(Object* object) const { return pinrail_mpool_free(pool, object->at) == PINRAIL_SUCCESS; }
};

struct FromMalloc {
  bool make(size_t length, Object* object) const { return (object->at = std::malloc(length)) != nullptr; }
  bool end(Object* object) const {
    std::free(object->at);
    return true;
  }
};

struct Registered {
  pinrail_mpool_t* pool;
  bool make(size_t length, Object* object) const {
    if (posix_memalign(&object->at, 4096, length) != 0) return false;
    return pinrail_mpool_register(pool, object->at, length, kAccess, PINRAIL_FLAG_CACHE_BYPASS, &object->handle) ==
           PINRAIL_SUCCESS;
  }
  bool end(Object* object) const {
    if (object->at == nullptr) return true;
    const bool is_good = pinrail_mpool_deregister(object->handle) == PINRAIL_SUCCESS;
    std::free(object->at);
    return is_good;
  }
};

template <typename Source>
bool run_steps(const Source& source, const std::vector<Step>& steps, std::vector<Object>* held) {
  for (const Step& step : steps) {
    Object& object = (*held)[step.place];
    if (!source.end(&object) || !source.make(step.length, &object)) return false;
  }
  return true;
}

// Threads that do the same steps in each round, each on objects of its own.
template <typename Source>
class Team {
 public:
  Team(const Source& source, unsigned threads, size_t count) : source_(source), count_(count) {
    pthread_barrier_init(&meeting_, nullptr, threads + 1);
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(i + 1); });
  }
  // Frees what is held.
  ~Team() {
    is_over_ = true;
    pthread_barrier_wait(&meeting_);
    for (std::thread& thread : threads_) thread.join();
    pthread_barrier_destroy(&meeting_);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Returns the nanoseconds of one replacement on each thread.
  double play_round() {
    const auto began = std::chrono::steady_clock::now();
    pthread_barrier_wait(&meeting_);
    pthread_barrier_wait(&meeting_);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    return took.count() / static_cast<double>(count_);
  }
  bool has_failed() const { return has_failed_; }

 private:
  void work(unsigned seed) {
    const std::vector<Step> steps = make_steps(count_, seed);
    std::vector<Object> held(kHeld);
    for (;;) {
      pthread_barrier_wait(&meeting_);
      if (is_over_) break;
      if (!run_steps(source_, steps, &held)) has_failed_ = true;
      pthread_barrier_wait(&meeting_);
    }
    for (Object& object : held) source_.end(&object);
  }

  const Source& source_;
  const size_t count_;
  pthread_barrier_t meeting_;  // of the threads and the caller, before and after each round
  std::atomic<bool> is_over_{false}, has_failed_{false};
  std::vector<std::thread> threads_;
};

// Nanoseconds of one replacement on each thread; the median of the rounds that follow when is_steady() says so, which
// is called after each round before, at least 5 and at most 100 times. ended() is called before what is held is freed.
// 0: a call failed.
template <typename Source, typename IsSteady, typename Ended>
double measure(const Source& source, unsigned threads, size_t count, size_t rounds, IsSteady&& is_steady,
               Ended&& ended) {
  constexpr int kLeast = 5, kMost = 100;
  Team<Source> team(source, threads, count);
  for (int round = 1; round <= kMost; ++round) {
    team.play_round();
    if (is_steady() && round >= kLeast) break;
  }
  std::vector<double> times;
  while (times.size() < rounds) times.push_back(team.play_round());
  ended();
  std::sort(times.begin(), times.end());
  return team.has_failed() ? 0 : times[times.size() / 2];
}

pinrail_alloc_stats_t alloc_stats(pinrail_mpool_t* pool) {
  pinrail_alloc_stats_t stats{};
  stats.size = sizeof(stats);
  (void)pinrail_mpool_alloc_read_stats(pool, &stats);
  return stats;
}

// What is registered beside what is used, while a random load is held.
double fragmentation(pinrail_mpool_t* pool) {
  std::vector<Object> held(kHeld * 64);
  const FromPool source{pool};
  std::mt19937 random(9);
  for (const Step& step : make_steps(200000, 7)) {
    Object& object = held[step.place + kHeld * (random() % 64)];
    if (!source.end(&object) || !source.make(step.length, &object)) return 0;
  }
  const pinrail_alloc_stats_t stats = alloc_stats(pool);
  for (Object& object : held) source.end(&object);
  return static_cast<double>(stats.mapped_bytes) / static_cast<double>(stats.allocated_bytes);
}

}  // namespace

Result run_alloc(const Options& /*options*/, const Session& session, Figures* figures) {
  constexpr unsigned threads = 2;
  const FromPool source{session.pool()};
  uint64_t calls = 0;
  int without = 0;  // rounds in a row
  const auto calls_so_far = [&] { return alloc_stats(session.pool()).registrations + session.stats().misses; };
  // How much is used at a time depends on how the threads meet, so the first rounds differ.
  const auto makes_no_calls = [&] {
    const uint64_t before = std::exchange(calls, calls_so_far());
    without = calls == before ? without + 1 : 0;
    return without >= 10;
  };
  const auto at_once = [] { return true; };
  const auto nothing = [] {};
  const double pool_ns = measure(source, threads, 200000, 5, makes_no_calls, [&] { calls = calls_so_far() - calls; });
  const double malloc_ns = measure(FromMalloc{}, threads, 200000, 5, at_once, nothing);
  const double registered_ns = measure(Registered{session.pool()}, threads, 5000, 3, at_once, nothing);
  if (pool_ns <= 0 || registered_ns <= 0) return Result::bad("a call failed");
  const pinrail_alloc_stats_t stats = alloc_stats(session.pool());
  figures->add("threads", threads, "");
  figures->add("alloc + free", pool_ns, "ns");
  figures->add("malloc + free", malloc_ns, "ns");
  figures->add("posix_memalign + register + deregister + free", registered_ns, "ns");
  figures->add("registration / alloc", registered_ns / pool_ns, "times", Bound::at_least, 100);
  figures->add("alloc / malloc", pool_ns / malloc_ns, "times", Bound::at_most, 2);
  figures->add("register calls of the device, steady state", calls, "calls", Bound::at_most, 0);
  figures->add("registered / used, random load", fragmentation(session.pool()), "times");
  figures->add("on huge pages of hugetlbfs", stats.hugetlb_bytes, "bytes");
  figures->add("where transparent huge pages may be", stats.transparent_bytes, "bytes");
  return Result::good();
}

}  // namespace pinrail::perf
