// SPDX-License-Identifier: BSD-3-Clause
// table.h - measures the cost of register + deregister for each size, without a cache and with one.
//
// Threads  one at a time; the timing creates its own threads.
//
// The steps of a row: map its buffers; time the pool that keeps nothing; time the pool under test; then, untimed and
// on one thread, check each buffer's registration, its bytes and the budget; unmap.
#ifndef PINRAIL_TOOLS_PERF_TABLE_H
#define PINRAIL_TOOLS_PERF_TABLE_H

#include <string>
#include <vector>

#include "contrib/tools/common/reasons.h"
#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/budget.h"
#include "contrib/tools/perf/byte_check.h"
#include "contrib/tools/perf/measure.h"
#include "contrib/tools/perf/memory.h"
#include "contrib/tools/perf/options.h"
#include "contrib/tools/perf/session.h"

namespace pinrail::perf {

struct Row {
  size_t size = 0;  // bytes of one buffer
  Pages pages = Pages::small;
  std::string reason;                     // why numbers are missing; empty: none is
  double uncached_ns = 0, cached_ns = 0;  // 0: not measured
  double uncached_per_second = 0, cached_per_second = 0;
  uint64_t hits = 0, misses = 0, evictions = 0, errors = 0;
  uint64_t registered_bytes = 0, pinned_bytes = 0;  // after the timed calls
  tools::Misses reasons{};                          // of the misses
  Growth growth;                                    // at the last check

  double speedup() const { return cached_ns > 0 && uncached_ns > 0 ? uncached_ns / cached_ns : 0; }
};

class Table {
 public:
  Table(const Options& options, const Session& session, Errors* errors);

  std::vector<Row> run();

  const ByteCheck& bytes() const { return bytes_; }

 private:
  Row row(size_t size, Pages pages);
  Result map(const Row& row, Buffers* buffers);
  bool time_uncached(const Buffers& buffers, Row* row);
  bool time_cached(const Buffers& buffers, Row* row);
  Job job(const Buffers& buffers) const;
  void refused(const Measured& measured, Row* row);
  bool crowded(size_t size) const;  // whether the threads' buffers may exceed the limit together
  void verify(Buffers* buffers);
  void verify_remapped(Buffers* buffers);
  enum class Depth { coverage_only, bytes_too };
  bool verify_step(const Buffers& buffers, size_t index, Depth depth);

  const Options& options_;
  const Session& session_;
  Errors* const errors_;
  ByteCheck bytes_;
  Budget budget_;
  Progress progress_;
  uint64_t changes_before_ = 0;  // remappings before the present row
};

}  // namespace pinrail::perf

#endif
