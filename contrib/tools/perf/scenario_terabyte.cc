// SPDX-License-Identifier: BSD-3-Clause
// scenario_terabyte.cc - a large range is pinned by helper threads while the program goes on: how soon its first chunk
// can be used, how long all of it takes beside the best synchronous way, and what hits of another thread cost
// meanwhile.
#include <pinrail/pin.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace pinrail::perf {

namespace {

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE;
constexpr size_t kChunk = size_t{2} << 20;

// While it lives, the process's new threads and this one run on the first processor that they may use.
class OneProcessor {
 public:
  OneProcessor() {
    CPU_ZERO(&before_);
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &before_) == 0) continue;
      CPU_SET(i, &one);
      break;
    }
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof(before_), &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_;
};

unsigned processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 1;
}

enum class Way { whole, chunks, populated };

// One thread pins the range and returns when it is done.
Result pin_synchronously(const Session& session, size_t bytes, Way way, double* ms_out) {
  const FreshMemory memory(bytes);
  if (!memory.is_mapped()) return Result::bad("no memory");
  const pinrail_range_t range = {memory.at(), bytes};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  if (way == Way::chunks) options.chunk_size = kChunk;
  const uint64_t began = now_ns();
  if (way == Way::populated) (void)madvise(memory.at(), bytes, MADV_POPULATE_WRITE);
  const pinrail_status_t status = pinrail_mpool_prepin(session.pool(), &range, 1, kAccess, &options, nullptr);
  *ms_out = ms_since(began);
  return status == PINRAIL_SUCCESS ? unpin(session, {range}) : failed("pinrail_mpool_prepin", status);
}

Result start(const Session& session, const pinrail_range_t& range, pinrail_prepin_t** prepin_out) {
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = kChunk;
  const pinrail_status_t status = pinrail_mpool_prepin_start(session.pool(), &range, 1, kAccess, &options, prepin_out);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("pinrail_mpool_prepin_start", status);
}

Result pin_in_background(const Session& session, size_t bytes, double* ms_out) {
  const FreshMemory memory(bytes);
  if (!memory.is_mapped()) return Result::bad("no memory");
  const pinrail_range_t range = {memory.at(), bytes};
  pinrail_prepin_t* prepin = nullptr;
  const uint64_t began = now_ns();
  Result started = start(session, range, &prepin);
  if (!started.ok()) return started;
  const pinrail_status_t status = pinrail_prepin_wait(prepin, nullptr);
  *ms_out = ms_since(began);
  (void)pinrail_prepin_free(prepin);
  return status == PINRAIL_SUCCESS ? unpin(session, {range}) : failed("pinrail_prepin_wait", status);
}

// How long after the call the first bytes can be used. The rest is cancelled, or given back if all is pinned by then.
Result use_first(const Session& session, size_t bytes, double* ms_out) {
  const FreshMemory memory(bytes);
  if (!memory.is_mapped()) return Result::bad("no memory");
  pinrail_prepin_t* prepin = nullptr;
  pinrail_handle_t handle;
  const uint64_t began = now_ns();
  Result started = start(session, {memory.at(), bytes}, &prepin);
  if (!started.ok()) return started;
  const pinrail_status_t status = pinrail_mpool_register(session.pool(), memory.at(), page_size(), kAccess, 0, &handle);
  *ms_out = ms_since(began);
  if (status == PINRAIL_SUCCESS) (void)pinrail_mpool_deregister(handle);
  (void)pinrail_prepin_cancel(prepin);
  const bool was_faster = pinrail_prepin_wait(prepin, nullptr) == PINRAIL_SUCCESS;
  (void)pinrail_prepin_free(prepin);
  if (status != PINRAIL_SUCCESS) return failed("the first request", status);
  return was_faster ? unpin(session, {{memory.at(), bytes}}) : Result::good();
}

Result measure_first(const Session& session, size_t bytes, Figures* figures) {
  constexpr size_t kTries = 15;
  std::vector<double> ms(kTries);
  for (double& each : ms) {
    Result result = use_first(session, bytes, &each);
    if (!result.ok()) return result;
  }
  std::sort(ms.begin(), ms.end());
  figures->add("first chunk usable, " + size_text(bytes), ms[kTries / 2], "ms", Bound::at_most, 1);
  figures->add("the slowest of 15 tries", ms.back(), "ms");
  return Result::good();
}

// One untimed try. The host of a virtual machine may have taken back memory that was free for long; the first one to
// touch it waits for the host, which says nothing about the way of pinning.
Result touch_free_memory(const Session& session, size_t bytes) {
  double ms = 0;
  return pin_in_background(session, bytes, &ms);
}

// The best time of three tries in the background, one after the other; `best` is the best so far.
Result try_in_background(const Session& session, size_t bytes, double* best) {
  Result result = Result::good();
  for (int i = 0; i < 3 && result.ok(); ++i) {
    double ms = 0;
    result = pin_in_background(session, bytes, &ms);
    if (result.ok()) *best = std::min(*best, ms);
  }
  return result;
}

// The same with each synchronous way once.
Result try_synchronously(const Session& session, size_t bytes, double* best) {
  Result result = Result::good();
  for (const Way way : {Way::whole, Way::chunks, Way::populated}) {
    double ms = 0;
    if (result.ok()) result = pin_synchronously(session, bytes, way, &ms);
    if (result.ok()) *best = std::min(*best, ms);
  }
  return result;
}

// The best of some rounds. All have the same number of tries, because the best of more tries is better. The tries of
// one kind follow each other: the kernel gives a try the pages that the one before has freed, and pages that were free
// for longer, which the host of a virtual machine may have taken back, are touched by the first one only.
Result measure_whole(const Session& session, size_t bytes, Figures* figures) {
  const int rounds = bytes > (size_t{1} << 30) ? 2 : 4;
  const std::string size = size_text(bytes);
  double synchronous = 1e30, background = 1e30, parallel = 1e30;
  Result result = Result::good();
  for (int round = 0; round < rounds && result.ok(); ++round) {
    {
      const OneProcessor one;
      result = try_synchronously(session, bytes, &synchronous);
      if (result.ok()) result = try_in_background(session, bytes, &background);
    }
    if (processors() > 1 && result.ok()) result = try_in_background(session, bytes, &parallel);
  }
  if (!result.ok()) return result;
  figures->add("the best synchronous way, one thread, " + size, synchronous, "ms");
  figures->add("in the background on one processor", background, "ms");
  figures->add("  / the best synchronous way", background / synchronous, "times", Bound::at_most, 1.1);
  if (processors() < 2) {
    figures->leave_out("in the background on several processors", "there is one");
    return result;
  }
  figures->add("in the background on all processors", parallel, "ms");
  figures->add("  / the best synchronous way", parallel / synchronous, "times", Bound::at_most, 1);
  return result;
}

// The 99th percentile of single hits on 1,024 buffers, in nanoseconds, until `stop` is set; at least 100,000 hits.
double p99_of_hits(const Session& session, const FreshMemory& memory, const std::atomic<bool>& stop) {
  constexpr size_t kBuffers = 1024, kLeast = 100000, kMost = 20000000;
  std::vector<uint32_t> ns;
  ns.reserve(kMost);
  const size_t step = memory.bytes() / kBuffers;
  for (size_t i = 0; i < kMost && (i < kLeast || !stop.load(std::memory_order_relaxed)); ++i) {
    pinrail_handle_t handle;
    const uint64_t began = now_ns();
    if (pinrail_mpool_register(session.pool(), memory.at(i * 7 % kBuffers * step), step, kAccess, 0, &handle) !=
        PINRAIL_SUCCESS) {
      return 1e30;
    }
    (void)pinrail_mpool_deregister(handle);
    ns.push_back(static_cast<uint32_t>(now_ns() - began));
  }
  const auto at = ns.begin() + static_cast<long>(ns.size() * 99 / 100);
  std::nth_element(ns.begin(), at, ns.end());
  return *at;
}

Result measure_hits(const Session& session, size_t bytes, Figures* figures) {
  const FreshMemory buffers(size_t{64} << 20), memory(bytes);
  if (!memory.is_mapped() || !buffers.is_mapped()) return Result::bad("no memory");
  std::atomic<bool> stop{true};
  (void)p99_of_hits(session, buffers, stop);  // registers them
  const double quiet = p99_of_hits(session, buffers, stop);
  const pinrail_range_t range = {memory.at(), bytes};
  stop = false;
  double busy = 0;
  pinrail_prepin_t* prepin = nullptr;
  Result started = start(session, range, &prepin);
  if (!started.ok()) return started;
  std::thread hits = start_thread([&] { busy = p99_of_hits(session, buffers, stop); });
  const pinrail_status_t status = pinrail_prepin_wait(prepin, nullptr);
  stop = true;
  hits.join();
  (void)pinrail_prepin_free(prepin);
  if (status != PINRAIL_SUCCESS) return failed("pinrail_prepin_wait", status);
  figures->add("a hit and its release, 99th percentile, quiet", quiet, "ns");
  figures->add("the same while " + size_text(bytes) + " are pinned", busy, "ns");
  figures->add("  / quiet", busy / quiet, "times", Bound::at_most, 2);
  return unpin(session, {range});
}

}  // namespace

Result run_terabyte(const Options& options, const Session& session, Figures* figures_out) {
  std::vector<size_t> sizes = {size_t{1} << 30, size_t{8} << 30};
  if (options.sizes_given) sizes = options.sizes;
  size_t largest = 0;
  for (const size_t bytes : sizes) {
    if (bytes > available_memory() / 10 * 9) {
      figures_out->leave_out(size_text(bytes), "this machine has " + size_text(available_memory()) + " to spare");
      continue;
    }
    largest = std::max(largest, bytes);
    Result result = touch_free_memory(session, bytes);
    if (result.ok()) result = measure_first(session, bytes, figures_out);
    if (result.ok()) result = measure_whole(session, bytes, figures_out);
    if (!result.ok()) return result;
  }
  return largest == 0 ? Result::good() : measure_hits(session, largest, figures_out);
}

}  // namespace pinrail::perf
