// SPDX-License-Identifier: BSD-3-Clause
// trace.h - recorded calls of a registration cache, read from text, plain or xz-compressed.
//
// Threads  none; a TraceParser belongs to one thread.
//
// trace/T1  Records that were accepted are in the file's order; addr + size does not overflow, and R and F name a
//     range.
// trace/T2  Each D names the id of an earlier R or F that no other D has released.
// trace/T3  What is malformed, cut off or empty is an error that names the line; nothing is guessed.
#ifndef PINRAIL_TOOLS_PERF_TRACE_H
#define PINRAIL_TOOLS_PERF_TRACE_H

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "contrib/tools/perf/result.h"

namespace pinrail::perf {

enum class TraceOp : char { reg = 'R', dereg = 'D', find = 'F', invalidate = 'I', evict = 'E', repeated = 'X' };

struct TraceRecord {
  uint64_t addr;
  uint64_t size;  // bytes
  int64_t id;     // of the call; -1: it failed or found nothing when it was recorded
  uint32_t access;
  uint32_t flags;
  uint32_t line;  // 1 and up
  TraceOp op;
};

struct Trace {
  std::vector<TraceRecord> records;
  std::string program;  // of the header, or empty
  uint64_t registers = 0;
};

// Takes text in pieces of any length.
class TraceParser {
 public:
  Result feed(std::string_view piece);
  Result finish(Trace* trace_out);  // no more follows
  uint64_t lines() const { return line_; }

 private:
  Result line(std::string_view text);
  Result header(std::string_view text);
  Result record(std::string_view text);
  Result check(const TraceRecord& record);
  Result malformed(const std::string& why) const;

  Trace trace_;
  std::string rest_;  // a line that is not complete yet
  uint64_t line_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t announced_ = UINT64_MAX;  // records that the header speaks of
  std::unordered_set<int64_t> seen_, held_;
};

// Reads a whole file.
Result read_trace(const std::string& path, Trace* trace_out);

}  // namespace pinrail::perf

#endif
