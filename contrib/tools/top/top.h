// SPDX-License-Identifier: BSD-3-Clause
// top.h - the figures as a table, as JSON, as a page for Prometheus, and on a terminal.
//
// Threads  the functions that return text may run together; the others one at a time.
#ifndef PINRAIL_CONTRIB_TOOLS_TOP_TOP_H
#define PINRAIL_CONTRIB_TOOLS_TOP_TOP_H

#include <pinrail/figures.h>

#include <cstdint>
#include <string>
#include <vector>

#include "contrib/tools/common/program.h"

namespace pinrail::top {

// Finds the pools of this user's processes and reads their figures (pinrail/figures.h).
//
// Threads  one at a time.
//
// top/V1  What another process shows is checked before it is used: seals, size, version, offsets, texts. A
//     file that fails a check is left out.

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

// "1.5G", "512B"; UINT64_MAX: "none".
std::string bytes_text(uint64_t bytes);
// "4ms", "-".
std::string time_text(uint64_t ns);

// All pools together.
std::string sum_line(const std::vector<Pool>& pools, const std::vector<Pool>& before, double seconds);
// "registered 3M in 12: held 1M in 1, dead 0B in 0, idle 2M".
std::string use_line(const Pool& pool);

// One line for each pool, and the line above them.
std::string head_line();
std::string pool_line(const Pool& pool, const Rates& rates);

std::string json_text(const std::vector<Pool>& pools);
// In the text format of Prometheus, version 0.0.4.
std::string prometheus_text(const std::vector<Pool>& pools);

// Serves http://127.0.0.1:PORT/metrics until a signal ends the process. port 0: the kernel chooses one; the address is
// printed. Returns 1 after a message if the port cannot be had.
int serve(uint16_t port, int pid);

// Shows the figures on a terminal, drawn anew each second by ncurses.
// Runs until the user leaves. pid 0: all processes of this user. Returns the exit status.
int run_screen(int pid, unsigned interval_ms);

}  // namespace pinrail::top

#endif
