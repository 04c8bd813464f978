// SPDX-License-Identifier: BSD-3-Clause
// report.h - prints the results, as text or as JSON, to standard output.
#ifndef PINRAIL_CONTRIB_TOOLS_PERF_REPORT_H
#define PINRAIL_CONTRIB_TOOLS_PERF_REPORT_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "contrib/tools/common/program.h"
#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/options.h"
#include "contrib/tools/perf/replay.h"
#include "contrib/tools/perf/replay_memory.h"
#include "contrib/tools/perf/session.h"

// Measures the cost of register + deregister for each size, without a cache and with one.
//
// Threads  one at a time; the timing creates its own threads.
//
// The steps of a row: map its buffers; time the pool that keeps nothing; time the pool under test; then, untimed and
// on one thread, check each buffer's registration, its bytes and the budget; unmap.

namespace pinrail::perf {

// Times register + deregister on one or several threads.
//
// Threads  measure() creates its threads, each on its own core while there are enough cores.
constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;

struct Job {
  pinrail_mpool_t* pool;
  uint32_t flags;          // PINRAIL_FLAG_*
  const Buffers* buffers;  // `threads` times `regions` buffers
  unsigned threads;
  size_t regions;          // of each thread
  uint64_t operations;     // maximum for each thread
  uint64_t time_limit_ns;  // after the first five batches; 0: none
};

struct Measured {
  pinrail_status_t status = PINRAIL_SUCCESS;  // the first error; the numbers are invalid then
  double ns = 0;                              // nanoseconds of one pair: median of batches
  double per_second = 0;                      // pairs of all threads together
  bool no_threads = false;                    // the system refused to create so many threads
};

// Warms up with one pair for each buffer, then times batches.
Measured measure(const Job& job);

// Some thousands of indices below count: one permutation after another, the same in each run.
std::vector<uint32_t> shuffled_order(size_t count);

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

void print_table(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                 const Errors& errors);
void print_replay(const Options& options, const ReplayedTrace& replayed);
// Several traces, or each beside its exact replay: a line each.
void print_replays(const Options& options, const std::vector<ReplayedTrace>& replayed);

// The same as JSON.
void print_table_json(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                      const Errors& errors);
void print_replay_json(const Options& options, const ReplayedTrace& replayed);
void print_replays_json(const Options& options, const std::vector<ReplayedTrace>& replayed);

// The first line of the text, and a line that says why no program on this machine can keep registrations, if so.
void print_facts(const PoolFacts& facts);
bool print_nothing_kept(const PoolFacts& facts);

// What this machine, this user and this program's settings let a registration cache do: of each finding what follows
// and what to do (pinrail_perf --doctor). examine() runs on one thread, before pinrail_init(): trials run in child
// processes.

// well: nothing to do. costs: works, and something is slower or left out. wrong: something does not work.
enum class Verdict { well, costs, wrong };

struct Finding {
  Verdict verdict;
  std::string subject, found;
  std::string follows, advice;  // empty where all is well
};

std::vector<Finding> examine(const Options& options);
void print_findings(const std::vector<Finding>& findings, std::ostream& out);

// Parts of examine().
// locked_limit, default_limit and from: as in pinrail_machine_t.
Finding judge_memlock(uint64_t locked_limit);
Finding judge_memory(uint64_t default_limit, const std::string& from);
// setting: the contents of /sys/kernel/mm/transparent_hugepage/enabled, empty if there is none.
Finding judge_huge_pages(const std::string& setting);

}  // namespace pinrail::perf

#endif
