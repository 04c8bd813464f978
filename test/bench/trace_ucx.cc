// SPDX-License-Identifier: BSD-3-Clause
// trace_ucx.cc - replays recorded traces through UCX's ucs_rcache, and prints for each file what its registrar was
// asked for: "FILE CALLS PAGES". test/bench/traces runs it beside pinrail_perf --trace.
//
// Its ranges are whole pages, as Pinrail's. It has no call that only finds, and no eviction on request: F and E lines
// are left out. A call that bypasses the cache is a call of the registrar.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/replay_memory.h"
#include "test/bench/measure.h"
#include "test/bench/ucx_cache.h"

namespace pinrail::bench {

namespace {

constexpr uint32_t kBypass = 1;  // of a trace's flags

struct Counts {
  uint64_t calls = 0, pages = 0;
};

Counts& counts() {
  static Counts all;
  return all;
}

void count(uintptr_t begin, uintptr_t end) {
  counts().calls++;
  counts().pages +=
      (perf::round_up(end, perf::page_size()) - perf::round_down(begin, perf::page_size())) / perf::page_size();
}

class Replay {
 public:
  explicit Replay(size_t most_bytes)
      : cache_(count, perf::page_size(), 0, most_bytes), memory_(perf::Touch::at_birth) {}

  void run(const perf::Trace& trace) {
    const perf::Result mapped = memory_.map(trace);
    if (!mapped.ok()) fail("memory", mapped.why().c_str());
    counts() = {};
    for (const perf::TraceRecord& record : trace.records) step(record);
    for (const auto& [id, region] : held_) cache_.deregister(region);
  }

 private:
  void step(const perf::TraceRecord& record) {
    if (record.op == perf::TraceOp::reg)
      take(record);
    else if (record.op == perf::TraceOp::dereg)
      release(record.id);
    else if (record.op == perf::TraceOp::invalidate)
      end({record.addr, record.addr + record.size});
  }

  void take(const perf::TraceRecord& record) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.at(record.addr));
    if ((record.flags & kBypass) != 0) return count(address, address + record.size);
    const UcxCache::Ref region = cache_.register_range(memory_.at(record.addr), record.size);
    if (region == nullptr) fail("ucs_rcache_get");
    if (record.id >= 0)
      held_.emplace(record.id, region);
    else
      cache_.deregister(region);
  }

  void release(int64_t id) {
    const auto found = held_.find(id);
    if (found == held_.end()) return;
    cache_.deregister(found->second);
    held_.erase(found);
  }

  void end(perf::TraceSpan span) {
    for (const perf::Piece& piece : memory_.to_report(span))
      UcxCache::invalidate(reinterpret_cast<void*>(piece.base), piece.length);
    const perf::Result mapped = memory_.remap(span);
    if (!mapped.ok()) fail("memory", mapped.why().c_str());
  }

  UcxCache cache_;
  perf::ReplayMemory memory_;
  std::unordered_map<int64_t, UcxCache::Ref> held_;  // by the trace's id
};

int run(int argc, char** argv) {
  const size_t most_bytes = argc > 1 ? strtoull(argv[1], nullptr, 10) : 0;
  if (argc < 3) fail("usage: trace_ucx BYTES FILE...: the limit, or 0, and traces");
  for (int i = 2; i < argc; i++) {
    perf::Trace trace;
    const perf::Result read = perf::read_trace(argv[i], &trace);
    if (!read.ok()) fail(read.why().c_str());
    Replay(most_bytes).run(trace);
    printf("%s %" PRIu64 " %" PRIu64 "\n", argv[i], counts().calls, counts().pages);
  }
  return 0;
}

}  // namespace

}  // namespace pinrail::bench

int main(int argc, char** argv) { return pinrail::bench::run(argc, argv); }
