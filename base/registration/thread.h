// SPDX-License-Identifier: BSD-3-Clause
// thread.h - the record of the calling thread: the only thread-local variable of Pinrail.
//
// Threads  current() in any context but a hook. When a thread ends, its record is given back.
#ifndef PINRAIL_BASE_REGISTRATION_THREAD_H
#define PINRAIL_BASE_REGISTRATION_THREAD_H

#include <pinrail/types.h>

#include "base/core/thread_record.h"

namespace pinrail {

// One request of a thread and the registration that answered it: base/hit/recent.h has the functions. All zero: answers
// nothing.
struct alignas(64) RecentRequest {
  uintptr_t addr;
  const void* pool;
  size_t covered;  // bytes that the registration has from addr on: the longest request that it answers
  pinrail_registration_t* reg;
  uint64_t generation;  // of the registration
  uint32_t access;      // that was asked for; requests with flags are not stored
};
static_assert(sizeof(RecentRequest) == 64, "one line of memory");

// The table of one thread: 64 KiB.
struct RecentRequests {
  static constexpr size_t kCount = 1024;

  RecentRequest entries[kCount];
};

}  // namespace pinrail

namespace pinrail::thread {

// Threads with a lower index have statistics counters of their own; all others share one.
constexpr uint32_t kThreadsWithOwnCounters = 511;

// Returns the record of the calling thread, made on first use; NULL if there is no memory for it.
pinrail_thread_t* current_slow();

// In a forked child, before any other call: abandons the records of the parent's threads. Their size is 0 from then on,
// and they remember no request: a thread of the child that still points to one gets a new one from current().
void fork_reinit();

// A null object: current_thread points to it before a thread's first call and after the thread's record was given back.
// It remembers no request, so hits need no check for a missing record. It is never passed to a pool.
extern pinrail_thread_t null_thread;

// Never NULL. Initial-exec: the library is loaded at start-up, or takes a few bytes of the static TLS reserve; one load
// per access.
// __thread instead of thread_local, which would check for dynamic initialisation at each access.
extern __thread pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec")));

inline pinrail_thread_t* current() {
  pinrail_thread_t* const thread = current_thread;
  return thread->size != 0 ? thread : current_slow();  // 0: null_thread, or a record of the parent process
}

}  // namespace pinrail::thread

#endif
