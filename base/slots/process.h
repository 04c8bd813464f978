// SPDX-License-Identifier: BSD-3-Clause
// process.h - identifies a process so that no other process that ever ran on this machine is taken for it.
//
// Threads  all functions may run together.
// Hook     Functions whose names end in _hook may be called in a hook; is_alive() as well.
#ifndef PINRAIL_BASE_SLOTS_PROCESS_H
#define PINRAIL_BASE_SLOTS_PROCESS_H

#include <linux/futex.h>

#include <atomic>
#include <cstdint>

#include "base/core/compiler.h"
#include "base/core/status.h"
#include "base/sync/own_threads.h"

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

// A word in shared memory that the kernel marks when this process ends or becomes another program.
//
// A thread that only sleeps has the word on its robust list, as if the word were a lock that the thread holds. The
// kernel marks such words when the thread ends: at exit, after a crash, and in execve(), before it frees the memory and
// the descriptors of the old program.
//
// Owns     the thread.
// Threads  start() and stop() exclude each other.
// Context  start-up or API.
//
// Until stop(), the kernel or-s kEnded into the word as soon as the program that called start() has ended.
class EndMark : NonCopyable {
 public:
  static constexpr uint32_t kEnded = FUTEX_OWNER_DIED;

  ~EndMark() { stop(); }

  // The word must stay mapped until stop(). False: no thread could be started, and the word is never marked.
  bool start(std::atomic<uint32_t>* word);
  // Ends the thread and leaves the word as it is. Does nothing in a process other than the one that called start(): a
  // forked child does not have the thread. A process that was restored from an image may have it, but under another id
  // than the one in the word.
  void stop();

 private:
  // The thread's data. It outlives the EndMark if the thread cannot be ended.
  struct Watch {
    explicit Watch(std::atomic<uint32_t>* marked) : word(marked) {}
    std::atomic<uint32_t>* const word;
    std::atomic<uint32_t> stopped{0};
    robust_list entry{};
    robust_list_head list{};
    OwnThread thread;
  };
  static void run_entry(void* watch);

  Watch* watch_ = nullptr;  // NULL: no thread runs
  long process_ = 0;
};

}  // namespace pinrail::slots

#endif
