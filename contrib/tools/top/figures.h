// SPDX-License-Identifier: BSD-3-Clause
// figures.h - finds the pools of this user's processes and reads their figures (pinrail/figures.h).
//
// Threads  one at a time.
//
// figures/V1  What another process shows is checked before it is used: seals, size, version, offsets, texts. A
//     file that fails a check is left out.
#ifndef PINRAIL_TOOLS_TOP_FIGURES_H
#define PINRAIL_TOOLS_TOP_FIGURES_H

#include <pinrail/figures.h>

#include <cstdint>
#include <string>
#include <vector>

#include "contrib/tools/common/reasons.h"

namespace pinrail::top {

// A range of which requests missed, among the events of the ring.
struct CostlyRange {
  uint64_t base = 0, length = 0, misses = 0;
  uint32_t reason = 0;  // of the last miss
};

// One pool of one process, at one time.
struct Pool {
  int pid = 0;
  uint64_t file = 0;  // its inode: names the pool
  std::string command, name, registrar, monitors;
  pinrail_figures_t figures{};
  pinrail_figures_counts_t counts{};  // of all its threads
  uint64_t misses = 0, registered_count = 0, registered_bytes = 0;
  tools::Misses reasons{};
  std::vector<CostlyRange> ranges;  // the costliest first; only of what is opened

  double hit_rate() const;                               // percent; 0: there was no request
  bool knows_use() const { return figures.looks != 0; }  // of held_bytes and what follows it
  uint64_t idle_bytes() const;
  uint64_t evictions() const { return counts.released[PINRAIL_REASON_EVICTED]; }
};

// pid 0: all processes of this user. with_ranges: their costliest ranges, too.
std::vector<Pool> read_pools(int pid, bool with_ranges);

// Figures of one second, from two samples of one pool.
struct Rates {
  double hits = 0, misses = 0, evictions = 0, events = 0, registrar_ns = 0;
  double reasons[PINRAIL_MISS_REASONS] = {};
};
Rates rates_of(const Pool& now, const std::vector<Pool>& before, double seconds);

}  // namespace pinrail::top

#endif
