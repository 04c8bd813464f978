// SPDX-License-Identifier: BSD-3-Clause
// own_thread.h - a thread of Pinrail's own: how it starts, which signals it takes, and how it ends.
//
// Such a thread blocks asynchronous signals, so that handlers of the program run on the program's threads. Synchronous
// ones stay open (base/core/calling_thread.h). It may run while the process exits, because no object that it uses has a
// destructor that exit() calls (R10). A forked child does not have it: there the object is constructed anew, or
// forgotten. When its body has returned the thread sleeps until it is joined: the C library frees memory as a thread
// ends, and that must not happen while the process forks (own_threads/S1).
//
// Owns     nothing once it was joined.
// Threads  start() and join() of one object exclude each other. The object stays where it is until join().
// Context  start-up or API.
#ifndef PINRAIL_BASE_SYNC_OWN_THREAD_H
#define PINRAIL_BASE_SYNC_OWN_THREAD_H

#include <pthread.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstddef>

#include "base/core/calling_thread.h"
#include "base/sync/futex_lock.h"

namespace pinrail {

class OwnThread {
 public:
  using Body = void (*)(void* arg);

  OwnThread() = default;

  // Starts the thread. name: at most 15 characters; body and arg must stay valid until join(). stack: its size in
  // bytes; 0: the default. False: no thread could be started.
  bool start(const char* name, Body body, void* arg, size_t stack = 0) {
    name_ = name;
    body_ = body;
    arg_ = arg;
    may_end_.store(0);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    if (stack != 0) pthread_attr_setstacksize(&attributes, stack);
    {
      const BlockAsyncSignals inherited_by_the_thread;
      started_ = pthread_create(&thread_, &attributes, run, this) == 0;
    }
    pthread_attr_destroy(&attributes);
    return started_;
  }

  // Waits for the end of the thread, if one was started. The body must be about to return. Not a cancellation point.
  void join() {
    if (!started_) return;
    const NoCancel no_cancel;
    may_end_.store(1);
    futex_call(&may_end_, FUTEX_WAKE_PRIVATE, 1, nullptr);
    pthread_join(thread_, nullptr);
    started_ = false;
  }

  // In a forked child: the thread does not exist there.
  void forget() { started_ = false; }

  bool is_started() const { return started_; }

 private:
  static void* run(void* self_pointer) {
    auto* const self = static_cast<OwnThread*>(self_pointer);
    prctl(PR_SET_NAME, self->name_);
    self->body_(self->arg_);
    while (self->may_end_.load() == 0) futex_call(&self->may_end_, FUTEX_WAIT_PRIVATE, 0, nullptr);
    return nullptr;
  }

  const char* name_ = nullptr;
  Body body_ = nullptr;
  void* arg_ = nullptr;
  std::atomic<uint32_t> may_end_{0};
  pthread_t thread_{};  // valid while started_
  bool started_ = false;
};

}  // namespace pinrail

#endif
