// SPDX-License-Identifier: BSD-3-Clause
// top.h - the figures as a table, as JSON, as a page for Prometheus, and on a terminal.
//
// Threads  the functions that return text may run together; the others one at a time.
#ifndef PINRAIL_TOOLS_TOP_TOP_H
#define PINRAIL_TOOLS_TOP_TOP_H

#include <cstdint>
#include <string>
#include <vector>

#include "contrib/tools/top/figures.h"

namespace pinrail::top {

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
