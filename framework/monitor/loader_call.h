// SPDX-License-Identifier: BSD-3-Clause
// loader_call.h - calls of dl_iterate_phdr() outside of init, during which no thread may fork.
//
// dl_iterate_phdr() holds the lock of the loader's list of objects, and glibc does not reset this lock in a forked
// child. A child that is forked while another thread holds it waits for ever in its first dlopen() or
// dl_iterate_phdr().
//
// Threads  all functions may run together. API context; before_fork() and after_fork() run in handlers of
//          pthread_atfork.
#ifndef PINRAIL_FRAMEWORK_MONITOR_LOADER_CALL_H
#define PINRAIL_FRAMEWORK_MONITOR_LOADER_CALL_H

#include "base/sync/thread_safety.h"

namespace pinrail::monitor {

// While an object of this class exists and is true, no other thread forks.
class LoaderCall {
 public:
  LoaderCall();
  ~LoaderCall();
  LoaderCall(const LoaderCall&) = delete;
  LoaderCall& operator=(const LoaderCall&) = delete;
  // False: another thread makes such a call, or forks. The caller leaves its call out.
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
};

// Wait until no thread is in such a call and keep it so, and end that. They do nothing if the calling thread is in one
// itself: a signal handler that interrupted it may fork, and the child's only thread goes on in the call. A second
// after_fork() does nothing.
void before_fork();
void after_fork();

// In a forked child; takes no lock.
void fork_reinit_loader_calls();

}  // namespace pinrail::monitor

#endif
