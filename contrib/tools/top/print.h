// SPDX-License-Identifier: BSD-3-Clause
// print.h - the figures as a table, as JSON and as a page for Prometheus.
//
// Threads  all functions may run together.
#ifndef PINRAIL_TOOLS_TOP_PRINT_H
#define PINRAIL_TOOLS_TOP_PRINT_H

#include <string>
#include <vector>

#include "contrib/tools/top/figures.h"

namespace pinrail::top {

// "1.5 GiB"; UINT64_MAX: "none".
std::string bytes_text(uint64_t bytes);
// "4 ms", "-".
std::string time_text(uint64_t ns);
// "evicted 75 %, cold 25 %": the reasons of all misses, the most frequent first, at most so many.
std::string reasons_text(const Pool& pool, size_t most);

// One line for each pool, and the line above them.
std::string head_line();
std::string pool_line(const Pool& pool, const Rates& rates);

std::string json_text(const std::vector<Pool>& pools);
// In the text format of Prometheus, version 0.0.4.
std::string prometheus_text(const std::vector<Pool>& pools);

}  // namespace pinrail::top

#endif
