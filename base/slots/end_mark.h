// SPDX-License-Identifier: BSD-3-Clause
// end_mark.h - a word in shared memory that the kernel marks when this process ends or becomes another program.
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
#ifndef PINRAIL_BASE_SLOTS_END_MARK_H
#define PINRAIL_BASE_SLOTS_END_MARK_H

#include <linux/futex.h>

#include <atomic>
#include <cstdint>

#include "base/core/non_copyable.h"
#include "base/sync/own_thread.h"

namespace pinrail::slots {

class EndMark : NonCopyable {
 public:
  static constexpr uint32_t kEnded = FUTEX_OWNER_DIED;

  EndMark() = default;
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
