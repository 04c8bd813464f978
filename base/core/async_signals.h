// SPDX-License-Identifier: BSD-3-Clause
// async_signals.h - the signals that code of ours may block.
//
// A signal that the kernel sends to a thread for what the thread itself does (a page without access, a bad instruction,
// a system call that a seccomp filter traps) ends the process while it is blocked, even if the program has a handler
// for it. Programs make pages accessible in such handlers. So these stay open on every thread and at every time.
//
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_ASYNC_SIGNALS_H
#define PINRAIL_BASE_CORE_ASYNC_SIGNALS_H

#include <csignal>
#include <initializer_list>

namespace pinrail {

// All signals except the synchronous ones.
inline sigset_t async_signals_hook() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&signals, number);
  return signals;
}

// Blocks them on this thread for a scope.
class BlockAsyncSignals {
 public:
  BlockAsyncSignals() {
    const sigset_t signals = async_signals_hook();
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockAsyncSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockAsyncSignals(const BlockAsyncSignals&) = delete;
  BlockAsyncSignals& operator=(const BlockAsyncSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace pinrail

#endif
