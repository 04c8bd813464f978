// SPDX-License-Identifier: BSD-3-Clause
// choice.h - what one run of the oracle does, which events take part, and which one comes next.
//
// Threads  next() and the counts may be used by any number of threads together.
#ifndef PINRAIL_TEST_ORACLE_CHOICE_H
#define PINRAIL_TEST_ORACLE_CHOICE_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "contrib/tools/common/command_line.h"
#include "contrib/tools/common/memory_events.h"

namespace pinrail::oracle {

// What one run of the oracle does, and for how long.

constexpr int kSound = 0, kWrong = 1, kUnable = 2, kSkipped = 77;

struct Options {
  double seconds = 60;
  unsigned threads = 0;  // 0: as many as processors, within 2 and 8
  uint64_t seed = 0;     // 0: by the clock
  std::string monitor;   // "": Pinrail's own choice; "none": nothing is reported
  std::string registrar = "iouring";
  std::string events;  // "": all; else names with commas between them
  bool raw_calls = false;
  bool maps_all = false;   // the pool that is not limited is of the mpool mrall
  bool allocates = false;  // memory of the pools' allocators is used beside the buffers
  bool pins = false;       // pieces of the buffers are pinned ahead of their use
  bool lists_mutants = false;
  const tools::MemoryEvent* mutant = nullptr;
  size_t largest = size_t{1} << 20;     // bytes of a buffer
  size_t size_limit = size_t{8} << 20;  // of the pool that evicts
  tools::Pairs mca;
};

// As CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

// Whether its registrations are stale afterwards, so that a run that drops it must find differences.
bool is_mutant(const tools::MemoryEvent& event);

using Random = std::mt19937_64;

// One event that takes part, and what became of it.
struct Kind {
  explicit Kind(const tools::MemoryEvent* what) : event(what) {}
  const tools::MemoryEvent* const event;
  std::atomic<uint64_t> fired{0};
  std::atomic<uint64_t> on_cached{0};  // the range could be found in the cache just before
  std::atomic<uint64_t> again{0};      // ... and was registered again afterwards, at the same address
  std::atomic<uint64_t> hits{0};       // ... by the registration that was there before

  // Fired often, and not once on memory that was cached: such memory is not kept here, and there is nothing to wait
  // for.
  bool is_never_cached() const {
    return fired.load(std::memory_order_relaxed) >= 100 && on_cached.load(std::memory_order_relaxed) == 0;
  }
};

struct Lacking {
  const tools::MemoryEvent* event;
  std::string why;
};

class Choice {
 public:
  explicit Choice(const Options& options);

  const std::vector<std::unique_ptr<Kind>>& kinds() const { return kinds_; }
  const std::vector<Lacking>& lacking() const { return lacking_; }
  const Lacking* find_lacking(const tools::MemoryEvent* event) const;

  // Most often the one that happened least, while it lags behind what is asked of it.
  Kind* next(Random* random) const;

  // How much of the time has passed, 0 to 1; and whether some event happened less often than it should have by then.
  void advance(double share) { share_.store(share, std::memory_order_relaxed); }  // relaxed: nothing hangs on it
  bool is_behind() const;

  // How often each kind must have been registered again: 1,000 in ten minutes, in proportion if shorter, at least once.
  static uint64_t wanted(double seconds);

 private:
  Kind* most_behind() const;

  std::vector<std::unique_ptr<Kind>> kinds_;
  std::vector<Lacking> lacking_;
  const tools::MemoryEvent* mutant_;
  uint64_t wanted_;
  std::atomic<double> share_{0};
};

// The first name of the list that is no event, as a complaint; or empty.
std::string unknown_event(const std::string& list);

}  // namespace pinrail::oracle

#endif
