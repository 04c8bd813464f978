// SPDX-License-Identifier: BSD-3-Clause
// replay.h - repeats the calls of a recorded program on its registration cache.
//
// Threads  one thread replays all calls in the trace's order.
//
// Memory events are real: the range of an I line is reported, unmapped and mapped again with new contents. Each
// returned registration is checked at once: coverage, staleness, bytes. Only calls of Pinrail are timed.
#ifndef PINRAIL_TOOLS_PERF_REPLAY_H
#define PINRAIL_TOOLS_PERF_REPLAY_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/replay_memory.h"
#include "contrib/tools/perf/session.h"
#include "contrib/tools/perf/trace.h"

namespace pinrail::perf {

// Prints messages as the library does as long as it lives, but each topic once: each replay starts the library anew,
// which then repeats what it says once.
class Messages {
 public:
  // silent: "grdma never fits", the channels and topics that are not printed.
  explicit Messages(std::set<std::string> silent = {});
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

 private:
  static void say(void* messages, int level, const char* channel, const char* message);

  std::mutex mutex_;
  std::set<std::string> said_;
};

// What the pool had after some records of a trace.
struct Sample {
  size_t record;  // index
  uint64_t registered_bytes, evictions, invalidations;
};

struct Replayed {
  uint64_t calls = 0;    // register calls
  uint64_t reports = 0;  // I lines
  uint64_t refused = 0;  // register calls that referenced registrations prevented
  uint64_t evicted = 0;  // by E lines
  pinrail_mpool_stats_t stats = {};
  uint64_t nanoseconds = 0;  // in calls of Pinrail
  DeviceCalls device;
  uint64_t errors = 0;
  std::string bytes_checked;  // see ByteCheck::said()
  uint64_t compared_bytes = 0, unchecked_bytes = 0;
  std::vector<Sample> samples;  // at most some 400, evenly spread
};

class Replay {
 public:
  Replay(const Session& session, Touch touch, Errors* errors);

  // Replays the trace. Bad if its memory cannot be mapped.
  Result run(const Trace& trace);

  const Replayed& figures() const { return figures_; }

 private:
  void step(const TraceRecord& record);
  void take(const TraceRecord& record);
  void keep(const TraceRecord& record, pinrail_handle_t handle);
  void release(const TraceRecord& record);
  void drop(const TraceRecord& record, pinrail_handle_t handle);
  void invalidate(const TraceRecord& record);
  void evict(const TraceRecord& record);
  void refuse(const TraceRecord& record, pinrail_status_t status);
  void check_limit(const TraceRecord& record, size_t index);
  void release_rest();
  uint64_t held_bytes() const;
  void fail(const TraceRecord& record, const std::string& what);

  const Session& session_;
  Errors* const errors_;
  ByteCheck bytes_;
  Progress progress_;
  ReplayMemory memory_;
  Replayed figures_;
  std::unordered_map<int64_t, pinrail_handle_t> held_;  // by the trace's id
};

struct ReplayedTrace {
  std::string trace, program;  // the file; from its header
  PoolFacts pool;
  Replayed figures;
  std::optional<Replayed> exact;  // of the second, exact replay

  // The figure divided by that of the exact replay; 0 if there is none.
  double cost_ratio(const CostModel& cost) const;
  double time_ratio() const;
  bool is_good() const { return figures.errors == 0 && (!exact || exact->errors == 0) && pool.why_not_kept.empty(); }
};

// Geometric means over all traces; 0 where one of the figures is 0.
struct Means {
  double cost_ms, register_ms, cost_ratio, time_ratio;
};

Means means_of(const CostModel& cost, const std::vector<ReplayedTrace>& replayed);

// Replays one in a pool of its own. Bad if its memory cannot be mapped.
Result replay_trace(const Options& options, const Trace& trace, PoolFacts* pool_out, Replayed* figures_out);

// Replays the traces in their order. Bad if one may not be read. What cannot be replayed is left out, with a line.
Result replay_all(const Options& options, std::vector<ReplayedTrace>* replayed_out);

}  // namespace pinrail::perf

#endif
