// SPDX-License-Identifier: BSD-3-Clause
// gc_thread.h - one thread of the process that deregisters what events invalidated, even if the program never calls
// Pinrail again (E4).
//
// The thread starts with the first member and ends at finalize. It sleeps until a hook wakes it: at once when a
// member's limit is exceeded, or "soon", which is 100 ms after the first such wake. Then it drains every member in
// turn. Dead registrations that are still referenced are checked again at growing intervals. A member that cannot be
// woken, because its memory dies in another process, names an interval of its own.
//
// Owns     the list of members. Not what they drain.
// Threads  all functions at any time, in API context without a lock held; stop() when there is no member. A member's
//          drain never runs twice at once.
// Hook     wake_hook(): one atomic word, and a system call only if the thread sleeps or must wake up earlier.
//
// gc_thread/W2  After leave() has returned, the member is not drained any more, and no drain of it is under way.
// gc_thread/W3  A wake that comes after the thread began to drain makes it drain once more.
#ifndef PINRAIL_FRAMEWORK_MPOOL_GC_THREAD_H
#define PINRAIL_FRAMEWORK_MPOOL_GC_THREAD_H

#include <pinrail/component_mpool.h>

#include <atomic>

#include "base/core/compiler.h"
#include "base/core/status.h"

namespace pinrail::gc {

// Drains one member, as for gc_join in component_mpool.h. Nonzero: something is left to check again.
using Drain = int (*)(void* arg, pinrail_thread_t* thread);

// Adds a member. interval_ms: the longest time between two of its drains; 0: it is drained only after a wake.
// OUT_OF_RESOURCE: no memory, or no thread could be started.
// bell: not NULL: the member is called only after another process has asked: by FUTEX_WAKE on this word of memory that
// it shares with this one for reading. This starts no thread; without one, or before Linux 5.16, the member is never
// called. The word is 0.
Status join(Drain drain, void* arg, uint32_t interval_ms, const uint32_t* bell, void** member_out);
// Removes a member and waits for its drain under way. Must not be called inside the drain.
void leave(void* member);

// Wakes the thread, now or soon. Hook context; preserves errno.
void wake_hook(pinrail_gc_when_t when);

// Ends the thread and waits for it. Shut-down.
void stop();

// While an object lives, no member is drained; the constructor waits for a drain under way. Not inside a drain.
class Pause : NonCopyable {
 public:
  Pause();
  ~Pause();
};

// Re-initialises in a forked child: no members, no thread.
void fork_reinit();

// Bells of other processes: words that they may read, and wake.
struct Bells {
  static constexpr size_t kMost = 126;
  const uint32_t* words[kMost];
  size_t count = 0;
  uint32_t version = 0;
};

// The words that the thread sleeps on.
struct Word {
  std::atomic<uint32_t> when{0};     // 0, or the most urgent pinrail_gc_when_t since the last drain began
  std::atomic<uint32_t> version{0};  // rises when there is one more bell

  // Sleeps while `when` and `version` are these, at most so long; -1: without limit. True: a bell has woken it.
  bool sleep(uint32_t seen, int64_t milliseconds, const Bells& bells);
};
extern Word word;

}  // namespace pinrail::gc

#endif
