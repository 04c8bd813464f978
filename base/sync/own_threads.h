// SPDX-License-Identifier: BSD-3-Clause
// own_threads.h - keeps threads of Pinrail's own out of the allocator and out of callbacks while the process forks.
//
// glibc's free() may take no lock, and the kernel copies pinned pages one by one. So a child that is forked while
// another thread frees memory may find its heap between two states. A program with one thread does not expect that. A
// thread of ours therefore says when it works. fork() waits until none works, and none begins until it has returned.
//
// Threads  All functions may run together.
// Context  API. before_fork() and after_fork() run in handlers of pthread_atfork. Monitors get begin() and end() by
//          base/core/own_component.h.
//
// own_threads/S1  While the process is copied, no thread of ours is at work, with four exceptions: the one that forks,
//     inside a registrar's function; one that was in such a function for longer than kMostWaitMs, or waits for another
//     thread; any, if the fork is made in a signal handler that interrupted Pinrail's own code, whose lock they may
//     wait for; and any, if the fork takes longer than kLongestForkMs: its handlers may wait for what such a thread has
//     announced. fork() then goes on.
//
// A thread that begins work, or passes, holds no lock. What it has announced, others wait for meanwhile.
#ifndef PINRAIL_BASE_SYNC_OWN_THREADS_H
#define PINRAIL_BASE_SYNC_OWN_THREADS_H

#include <pthread.h>
#include <sys/prctl.h>

#include <cstddef>

#include "base/core/calling_thread.h"
#include "base/core/compiler.h"
#include "base/sync/futex_lock.h"

namespace pinrail::own_threads {

constexpr int64_t kMostWaitMs = 1000, kLongestForkMs = 5000;

// The calling thread begins or ends work, of which there may be more inside. begin() waits while another thread forks.
void begin();
void end();

// Between two pieces of work: lets the process fork. Does nothing on a thread that is not at work.
void pass_slowly();
extern std::atomic<uint32_t> forks;  // under way
inline void pass() {
  // relaxed: a fork that is missed waits for the next pass.
  if (__builtin_expect(forks.load(std::memory_order_relaxed) != 0, 0)) pass_slowly();
}

// leave_for_fork(): the calling thread is about to fork and may have to wait for other forks: it counts as not at work
// until after_fork(). before_fork(): waits for threads at work, unless the caller may have a lock that they wait for:
// a signal handler that forks may have interrupted Pinrail's own code. after_fork(): in the parent. in_child(): in the
// child, where a second call does nothing.
void leave_for_fork();
void before_fork(bool may_have_lock);
void after_fork();
void in_child();

// In a forked child, before any other call, whether or not in_child() was called: no thread of the parent is at work.
void fork_reinit();

// What the calling thread does without a pass, if it is at work: other threads wait for it, which may hold what the
// forking thread asks for.
class Whole : NonCopyable {
 public:
  Whole();
  ~Whole();
};

// Work for a scope.
class Work : NonCopyable {
 public:
  Work() { begin(); }
  ~Work() { end(); }
};

}  // namespace pinrail::own_threads

namespace pinrail {

// A thread of Pinrail's own: how it starts, which signals it takes, and how it ends.
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

class OwnThread {
 public:
  using Body = void (*)(void* arg);

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
