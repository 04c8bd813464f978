// SPDX-License-Identifier: BSD-3-Clause
// process.h - identifies a process so that no other process that ever ran on this machine is taken for it.
//
// Threads  all functions may run together.
// Hook     Functions whose names end in _hook may be called in a hook; is_alive() as well.
#ifndef PINRAIL_BASE_SLOTS_PROCESS_H
#define PINRAIL_BASE_SLOTS_PROCESS_H

#include <cstdint>

#include "base/core/status.h"

namespace pinrail::slots {

struct Process {
  uint32_t pid = 0;
  uint32_t user = 0;     // effective user id
  uint64_t start = 0;    // clock ticks from the boot to its start
  uint64_t machine = 0;  // a hash of boot id and pid namespace; pid and start are comparable only if it is equal

  bool is(uint32_t other_pid, uint64_t other_start) const { return pid == other_pid && start == other_start; }
  // False for a process that was restarted from this one's image.
  bool is(const Process& other) const { return machine == other.machine && is(other.pid, other.start); }
};

// Reads /proc; start-up or API context. NOT_SUPPORTED: /proc does not have the data.
Status this_process(Process* process_out);

// Returns whether the process with this pid and start time still runs, that is, has a thread that has not ended. A
// zombie does not run. True also if the system does not tell, for example because this process has no descriptor left.
// Any context: it reads one file and does nothing else.
bool is_alive_hook(uint32_t pid, uint64_t start);
inline bool is_alive(uint32_t pid, uint64_t start) { return is_alive_hook(pid, start); }

// Returns in *start_out when the process started. False: /proc does not have the data.
bool read_start(uint32_t pid, uint64_t* start_out);

}  // namespace pinrail::slots

#endif
