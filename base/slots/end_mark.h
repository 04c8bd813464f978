// SPDX-License-Identifier: BSD-3-Clause
// end_mark.h - a word in shared memory that the kernel marks when this process ends or becomes another program.
//
// A thread that does nothing else has the word on its robust list, as if it were a lock that the thread holds. The
// kernel marks such words when the thread ends: at exit, after a crash, and in execve(), before the memory and the
// descriptors of the old program go.
//
// Owns     the thread.
// Threads  start() and stop() exclude each other.
// Hook     none.
//
// end_mark/E1  Until stop(), the word is kEnded or-ed to something as soon as the process's old program has ended.
#ifndef PINRAIL_BASE_SLOTS_END_MARK_H
#define PINRAIL_BASE_SLOTS_END_MARK_H

#include <linux/futex.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace pinrail::slots {

class EndMark {
 public:
  static constexpr uint32_t kEnded = FUTEX_OWNER_DIED;

  EndMark() = default;
  ~EndMark() { stop(); }
  EndMark(const EndMark&) = delete;
  EndMark& operator=(const EndMark&) = delete;

  // The word stays mapped until stop(). False: there is no thread to be had, and the word is never marked.
  bool start(std::atomic<uint32_t>* word);
  // The word stays as it is. In another process than start() nothing happens: a forked child has not the thread, and
  // one that was restored from an image may have it, but under a number that does not stand in the word.
  void stop();

 private:
  // What the thread looks at; it outlives the mark where the thread cannot be ended.
  struct Watch {
    std::atomic<uint32_t>* word;
    std::atomic<uint32_t> stopped{0};
    robust_list entry{};
    robust_list_head list{};
  };
  static void* run_entry(void* watch);

  Watch* watch_ = nullptr;  // NULL: no thread runs
  pthread_t thread_{};
  long process_ = 0;
};

}  // namespace pinrail::slots

#endif
