// SPDX-License-Identifier: BSD-3-Clause
// process.h - which process is this, so that no other one that ever lived on this machine is taken for it?
//
// Threads  all functions may run together.
// Hook     what ends in _hook.
#ifndef PINRAIL_BASE_SLOTS_PROCESS_H
#define PINRAIL_BASE_SLOTS_PROCESS_H

#include <cstdint>

#include "base/core/status.h"

namespace pinrail::slots {

struct Process {
  uint32_t pid = 0;
  uint32_t user = 0;     // effective
  uint64_t start = 0;    // clock ticks from the boot to its start
  uint64_t machine = 0;  // of boot and pid namespace: only there do the others mean something

  bool is(uint32_t other_pid, uint64_t other_start) const { return pid == other_pid && start == other_start; }
  // The same one, and not one that was restarted from its image.
  bool is(const Process& other) const { return machine == other.machine && is(other.pid, other.start); }
};

// NOT_SUPPORTED: /proc does not tell.
Status this_process(Process* process_out);

// Whether a process of that number, which started then, lives still: has a thread that runs. One that is dead and not
// yet waited for does not. Any context: a file is read, and nothing else.
bool is_alive_hook(uint32_t pid, uint64_t start);
inline bool is_alive(uint32_t pid, uint64_t start) { return is_alive_hook(pid, start); }

// When a process started. False: /proc does not tell.
bool read_start_hook(uint32_t pid, uint64_t* start_out);

}  // namespace pinrail::slots

#endif
