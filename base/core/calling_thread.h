// SPDX-License-Identifier: BSD-3-Clause
// calling_thread.h - what a scope changes for its thread: cancellation, signals.
//
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_CALLING_THREAD_H
#define PINRAIL_BASE_CORE_CALLING_THREAD_H

#include <pthread.h>

#include <csignal>
#include <initializer_list>

#include "base/core/compiler.h"

namespace pinrail {

// Disables cancellation of its thread for a scope: for code with system calls that are cancellation points.
class NoCancel : NonCopyable {
 public:
  NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_;
};

// The signals that code of ours may block: all but the synchronous ones. A signal that the kernel sends to a thread for
// what the thread itself does (a page without access, a bad instruction, a system call that a seccomp filter traps)
// ends the process while it is blocked, even if the program has a handler for it. Programs make pages accessible in
// such handlers. So these stay open on every thread and at every time.
inline sigset_t async_signals() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&signals, number);
  return signals;
}

// Blocks them on this thread for a scope.
class BlockAsyncSignals : NonCopyable {
 public:
  BlockAsyncSignals() {
    const sigset_t signals = async_signals();
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockAsyncSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace pinrail

#endif
