// SPDX-License-Identifier: BSD-3-Clause
// default_limits.h - how many bytes the pools of host memory may register where no limit is set.
//
// Threads  all functions may run together. Start-up context; they read files.
// Errors   None. What cannot be found out does not bound.
#ifndef PINRAIL_FRAMEWORK_MPOOL_DEFAULT_LIMITS_H
#define PINRAIL_FRAMEWORK_MPOOL_DEFAULT_LIMITS_H

#include <cstdint>
#include <string>

namespace pinrail::mpool {

// What bounds the memory that this process may pin; bytes, UINT64_MAX: no bound.
struct Bounds {
  uint64_t memory = UINT64_MAX;   // of the machine
  uint64_t cgroup = UINT64_MAX;   // the smallest limit of the process's control group and of those above it
  uint64_t memlock = UINT64_MAX;  // RLIMIT_MEMLOCK; no bound with CAP_IPC_LOCK
  unsigned processes = 1;         // of this job on this machine, which share memory and control group
};

struct DefaultLimit {
  uint64_t bytes = UINT64_MAX;
  std::string derivation;  // one sentence without a full stop
};

// Reads the bounds of this process.
Bounds read_bounds();

// Three quarters of the smaller of memory and control group, divided by the processes, and at most the limit of locked
// memory; at least one page.
DefaultLimit default_limit(const Bounds& bounds);

// The smallest limit in the files memory.max (version 2) or memory.limit_in_bytes (version 1) of the group and of those
// above it. cgroup_file: as /proc/self/cgroup; root: where control groups are mounted.
uint64_t cgroup_limit(const std::string& cgroup_file, const std::string& root);

// The number of local processes that the launcher tells in the environment; 1 if it tells none.
unsigned local_processes();

}  // namespace pinrail::mpool

#endif
