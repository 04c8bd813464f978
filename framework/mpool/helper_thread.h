// SPDX-License-Identifier: BSD-3-Clause
// helper_thread.h - a thread that works for pools: the gc thread, and those that register ahead. Monitors and exporters
// of GPU memory have threads of their own.
//
// Such a thread blocks all signals, so that handlers of the program run on the program's threads. It may run while the
// process exits, because no object that it uses has a destructor that exit() calls (R10). A forked child does not have
// it: there the object is constructed anew, or forgotten.
//
// Owns     nothing once it was joined.
// Threads  start() and join() of one object exclude each other.
// Context  API.
#ifndef PINRAIL_FRAMEWORK_MPOOL_HELPER_THREAD_H
#define PINRAIL_FRAMEWORK_MPOOL_HELPER_THREAD_H

#include <pthread.h>

namespace pinrail::mpool {

class HelperThread {
 public:
  using Body = void (*)(void* arg);

  // Starts the thread. name: at most 15 characters; body and arg must stay valid until join(). False: no thread could
  // be started.
  bool start(const char* name, Body body, void* arg);

  // Waits for the end of the thread, if one was started. The body must be about to return. Not a cancellation point.
  void join();

  // Called by the thread itself if it ends before its body has returned. No thread joins it then, and start() may start
  // another one.
  void detach();

  bool is_started() const { return started_; }

 private:
  static void* run(void* self);

  const char* name_ = nullptr;
  Body body_ = nullptr;
  void* arg_ = nullptr;
  pthread_t thread_{};  // valid while started_
  bool started_ = false;
};

}  // namespace pinrail::mpool

#endif
