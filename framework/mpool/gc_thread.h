// SPDX-License-Identifier: BSD-3-Clause
// gc_thread.h - one thread of the process that gives back what events killed, although nobody calls in (E4).
//
// It starts with the first member and ends at finalize. It sleeps until a hook wakes it: at once, when a member's limit
// is exceeded, or "soon", which is 100 ms after the first such word. Then it drains every member, one after the other.
// What is dead and still held is looked at again, at growing intervals. A member that cannot be woken, for what dies is
// in another process, names an interval of its own.
//
// Owns     the list of members. Not what they drain.
// Threads  all functions at any time; stop() when there is no member. A member's drain is never called twice at once.
// Hook     wake_hook(): a word, and a system call only when the thread sleeps or shall hurry.
//
// gc_thread/W1  No lock is held while a member drains. One whose registrar blocks makes the others wait for their next
//     call.
// gc_thread/W2  After leave() has returned, the member is not drained any more, and no drain of it is under way.
// gc_thread/W3  A wake that comes after the thread began to drain makes it drain once more.
#ifndef PINRAIL_FRAMEWORK_MPOOL_GC_THREAD_H
#define PINRAIL_FRAMEWORK_MPOOL_GC_THREAD_H

#include <pinrail/component.h>

#include <atomic>

#include "base/core/status.h"

namespace pinrail::gc {

// As host->gc_join in component.h.
using Drain = int (*)(void* arg, pinrail_thread_t* thread);

// every_ms: so often at least the thread comes by itself; 0: only when it is woken. OUT_OF_RESOURCE: no memory, or no
// thread.
Status join(Drain drain, void* arg, uint32_t every_ms, void** member_out);
// Waits for a drain that is under way. Not from inside it.
void leave(void* member);

void wake_hook(pinrail_gc_when_t when);

void stop();

// While one lives nothing is drained; the first waits for a drain under way. Not from inside a drain.
class Pause {
 public:
  Pause();
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
};

// In a forked child: no members, no thread.
void fork_reinit();

// What the thread sleeps on: 0, or the most urgent pinrail_gc_when_t since it began to drain.
struct Word {
  std::atomic<uint32_t> when{0};

  void sleep(uint32_t seen, int64_t milliseconds);  // -1: until woken
};
extern Word word;

}  // namespace pinrail::gc

#endif
