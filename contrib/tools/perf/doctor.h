// SPDX-License-Identifier: BSD-3-Clause
// doctor.h - looks at what this machine, this user and this program's settings let a registration cache do, and says of
// each finding what follows and what to do (pinrail_perf --doctor).
//
// Threads  one thread, before pinrail_init(): trials run in child processes.
#ifndef PINRAIL_TOOLS_PERF_DOCTOR_H
#define PINRAIL_TOOLS_PERF_DOCTOR_H

#include <ostream>
#include <string>
#include <vector>

#include "contrib/tools/perf/options.h"

namespace pinrail::perf {

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
