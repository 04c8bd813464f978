// SPDX-License-Identifier: BSD-3-Clause
// scenario_prepin.cc - memory that is registered ahead of its use needs no further call of the registrar, and the
// answers of pinrail_mpool_query() agree with a list of what is pinned.
#include <pinrail/alloc.h>
#include <pinrail/pin.h>
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

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE;

// The calls of the registrar that the pool has made for register calls.
uint64_t device_calls(const Session& session) {
  const pinrail_mpool_stats_t stats = session.stats();
  return stats.misses + stats.retries + stats.races;
}

Result pin(const Session& session, const std::vector<pinrail_range_t>& ranges) {
  const pinrail_status_t status =
      pinrail_mpool_prepin(session.pool(), ranges.data(), ranges.size(), kAccess, nullptr, nullptr);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("pinrail_mpool_prepin", status);
}

Result send(const Session& session, void* addr, size_t length) {
  pinrail_handle_t handle;
  pinrail_status_t status = pinrail_mpool_register(session.pool(), addr, length, kAccess, 0, &handle);
  if (status == PINRAIL_SUCCESS) status = pinrail_mpool_deregister(handle);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("a send", status);
}

Result run_sends(const Options& options, const Session& session, Figures* figures) {
  constexpr size_t kBytes = size_t{1} << 20;
  const uint64_t sends = options.iterations != 0 ? options.iterations : 1000000;
  const FreshMemory memory(kBytes);
  if (!memory.is_mapped()) return Result::bad("no memory");
  const std::vector<pinrail_range_t> range = {{memory.at(), kBytes}};
  const uint64_t before = device_calls(session);
  Result result = pin(session, range);
  const uint64_t began = now_ns();
  std::mt19937 random(1);
  for (uint64_t i = 0; i < sends && result.ok(); ++i) {
    const size_t offset = random() % kBytes;
    result = send(session, memory.at(offset), 1 + random() % (kBytes - offset));
  }
  const uint64_t took = now_ns() - began;
  if (!result.ok()) return result;
  figures->add(text("registrar calls of a prepin and %llu sends", static_cast<unsigned long long>(sends)),
               device_calls(session) - before, "calls", Bound::exactly, 1);
  figures->add("one send inside pinned memory", static_cast<double>(took) / static_cast<double>(sends), "ns");
  return unpin(session, range);
}

Result run_tensors(const Session& session, Figures* figures) {
  constexpr size_t kTensors = 1265;
  std::mt19937 random(2);
  std::vector<pinrail_range_t> tensors;
  const FreshMemory memory(size_t{32} << 20);
  if (!memory.is_mapped()) return Result::bad("no memory");
  size_t at = 0;
  for (size_t i = 0; i < kTensors; ++i) {
    const size_t length = 1 + random() % 20000;
    tensors.push_back({memory.at(at), length});
    at += length + random() % 64;
  }
  const uint64_t before = device_calls(session);
  Result result = pin(session, tensors);
  for (size_t i = 0; i < kTensors && result.ok(); ++i) result = send(session, tensors[i].addr, tensors[i].length);
  if (!result.ok()) return result;
  figures->add("registrar calls of 1265 tensors in one allocation", device_calls(session) - before, "calls",
               Bound::exactly, 1);
  return unpin(session, tensors);
}

// Slots of three pages with a gap behind each; each is pinned or not.
class Slots {
 public:
  static constexpr size_t kSlots = 24, kPagesOfSlot = 4;
  explicit Slots(const FreshMemory& memory) : memory_(memory) {}

  bool is_pinned(size_t slot) const { return pinned_[slot]; }
  void flip(size_t slot) { pinned_[slot] = !pinned_[slot]; }
  pinrail_range_t range(size_t slot) const {
    return {memory_.at(slot * kPagesOfSlot * page_size()), (kPagesOfSlot - 1) * page_size()};
  }
  // How many pages of the memory query() misjudges.
  size_t differences(const Session& session) const {
    const size_t pages = kSlots * kPagesOfSlot;
    std::vector<pinrail_range_t> parts(pages);
    pinrail_pinned_t pinned;
    size_t count = 0;
    if (pinrail_mpool_query(session.pool(), memory_.at(), pages * page_size(), kAccess, &pinned, parts.data(),
                            parts.size(), &count) != PINRAIL_SUCCESS) {
      return pages;
    }
    std::vector<bool> found(pages);
    for (size_t i = 0; i < count; ++i) {
      const auto first = static_cast<size_t>(static_cast<char*>(parts[i].addr) - memory_.at()) / page_size();
      for (size_t page = 0; page < parts[i].length / page_size(); ++page) found[first + page] = true;
    }
    size_t wrong = 0;
    for (size_t page = 0; page < pages; ++page) {
      const bool is_in = pinned_[page / kPagesOfSlot] && page % kPagesOfSlot != kPagesOfSlot - 1;
      wrong += found[page] == is_in ? 0 : 1;
    }
    return wrong;
  }

 private:
  const FreshMemory& memory_;
  bool pinned_[kSlots] = {};
};

Result run_queries(const Session& session, Figures* figures) {
  constexpr int kSteps = 2000;
  const FreshMemory memory(Slots::kSlots * Slots::kPagesOfSlot * page_size());
  if (!memory.is_mapped()) return Result::bad("no memory");
  Slots slots(memory);
  std::mt19937 random(3);
  size_t wrong = 0;
  for (int step = 0; step < kSteps; ++step) {
    const size_t slot = random() % Slots::kSlots;
    Result result = slots.is_pinned(slot) ? unpin(session, {slots.range(slot)}) : pin(session, {slots.range(slot)});
    if (!result.ok()) return result;
    slots.flip(slot);
    wrong += slots.differences(session);
  }
  figures->add("pages that query misjudges in 2000 random pins", wrong, "pages", Bound::exactly, 0);
  for (size_t slot = 0; slot < Slots::kSlots; ++slot) {
    if (!slots.is_pinned(slot)) continue;
    Result result = unpin(session, {slots.range(slot)});
    if (!result.ok()) return result;
  }
  return Result::good();
}

}  // namespace

Result run_prepin(const Options& options, const Session& session, Figures* figures_out) {
  Result result = run_sends(options, session, figures_out);
  if (result.ok()) result = run_tensors(session, figures_out);
  if (result.ok()) result = run_queries(session, figures_out);
  return result;
}

// Allocations of 64 bytes to 1 MiB on two threads: from the pool's slabs, from malloc, and by
// posix_memalign with a registration. Each replaces one of 64 objects at random.

namespace {

constexpr size_t kHeld = 64;
constexpr uint32_t kObjectAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE;

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
    return pinrail_mpool_register(pool, object->at, length, kObjectAccess, PINRAIL_FLAG_CACHE_BYPASS,
                                  &object->handle) == PINRAIL_SUCCESS;
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
    for (unsigned i = 0; i < threads; ++i) threads_.push_back(start_thread([this, i] { work(i + 1); }));
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
