// SPDX-License-Identifier: BSD-3-Clause
// trace.h - recorded calls of a registration cache, read from text, plain or compressed by xz.
//
// Threads  one thread uses a TraceParser.
//
// Each D names the id of an earlier R or F that no other D has released. A malformed, truncated or empty file is an
// error that names the line; nothing is guessed. Records take no more than a quarter of the memory that is free, and
// what is no record 64 MiB of text.
#ifndef PINRAIL_TOOLS_PERF_TRACE_H
#define PINRAIL_TOOLS_PERF_TRACE_H

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

enum class TraceOp : char { reg = 'R', dereg = 'D', find = 'F', invalidate = 'I', evict = 'E', repeated = 'X' };

struct TraceRecord {
  uint64_t addr;
  uint64_t size;  // bytes
  int64_t id;     // id of the call; -1: it failed or found nothing in the recording
  uint32_t access;
  uint32_t flags;
  uint32_t line;  // line number, from 1
  TraceOp op;
  uint64_t ns = 0;  // since the recording began
};

struct Trace {
  std::vector<TraceRecord> records;
  std::string program;  // from the header; may be empty
  // Names and values that were set where it was recorded, as far as the header says. Anybody may have written them.
  std::vector<std::pair<std::string, std::string>> settings;
  uint64_t registers = 0;
  uint64_t missing = 0;  // calls that were made when the recording was full
};

// Takes text in pieces of any length.
class TraceParser {
 public:
  Result feed(std::string_view piece);
  Result finish(Trace* trace_out);  // ends the text
  uint64_t lines() const { return line_; }

 private:
  Result line(std::string_view text);
  Result header(std::string_view text);
  Result record(std::string_view text);
  Result check(const TraceRecord& record);
  bool has_memory() const;
  Result malformed(const std::string& why) const;

  Trace trace_;
  std::string rest_;  // an incomplete line
  uint64_t line_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t other_bytes_ = 0;         // of lines that are no record
  uint64_t announced_ = UINT64_MAX;  // number of records by the header
  std::unordered_set<int64_t> seen_, held_;
};

// The first 200 bytes, without what would control a terminal.
std::string printable(std::string_view text);

// "The recording ended early: 3 calls are missing"
std::string missing_text(uint64_t missing);

// Reads a whole file.
Result read_trace(const std::string& path, Trace* trace_out);

}  // namespace pinrail::perf

#endif
