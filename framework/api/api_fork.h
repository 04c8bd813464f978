// SPDX-License-Identifier: BSD-3-Clause
// api_fork.h - How calls on a pool begin, and those on a handle; rule api_fork/F1: what the first call in a forked
// child does with the inherited state.
//
// The kernel wipes the gate in the child (base/sync/gate.h), so the child's first register or find enters here; every
// other call that could take a lock or reach a device calls handle_fork(). The first such call replaces the parent's
// locks, lists and thread records by new ones. It neither locks, walks nor frees the old ones, because another thread
// of the parent may have been changing them. Their memory stays allocated. Handles may still be dropped; this does
// nothing.
//
// Threads  handle_fork() may run at any time, in API context. A hook must not call it: hooks ask gate::is_child() and
//          return.
//
// api_fork/F1  A parent's pool has a table of operations that do nothing, and an empty shortcut: no device is
//     called.
//
// A child of vfork or posix_spawn shares the parent's memory, and its gate was not wiped: nothing happens.
#ifndef PINRAIL_FRAMEWORK_API_API_FORK_H
#define PINRAIL_FRAMEWORK_API_API_FORK_H

#include "base/core/compiler.h"
#include "base/core/status.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "framework/mpool/mpool.h"

namespace pinrail::api {

// Re-initialises all inherited state in a forked child, once; other threads of the child wait until it is done. Takes
// no lock. API context.
void fork_reinit();

// Every API function calls this first, except on its hit path. Cheap where the process is no forked child.
inline void handle_fork() {
  if (unlikely(gate::is_child())) fork_reinit();
}

// Blocks forks on other threads while it is in scope. Init and finalize load and unload components; libc's loader does
// not survive a fork in the middle of that: the child's next dlopen would crash. Takes the lock of rank "fork".
class NoFork : NonCopyable {
 public:
  NoFork();
  ~NoFork();
  // False: this thread is inside its own fork(), in a handler of pthread_atfork, or in init or finalize, whose
  // callbacks may call again. Init and finalize then return BUSY.
  explicit operator bool() const { return entered_; }

 private:
  const bool entered_;
};

// Whether this thread is inside init or finalize: a registrar's function asks, which finalize has called.
bool is_in_init_or_finalize();

// Whether the pool was the parent's. The caller has called handle_fork().
inline bool is_inherited(const pinrail_mpool* pool) { return pool->former_ops != nullptr; }

// How calls on a pool begin, and those on a handle of something that helper threads do for it.
//
// Threads  all functions may run together. API context; the caller holds no lock.

// Calls body(thread) and returns its status. BUSY: this thread is inside another call, which a signal handler has
// interrupted. OUT_OF_RESOURCE: there is no memory for the thread's record.
template <typename Body>
pinrail_status_t in_call(Body&& body) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  pinrail_thread_t* const thread = thread::current();
  return thread != nullptr ? body(thread) : PINRAIL_ERR_OUT_OF_RESOURCE;
}

// Calls body() and returns its status. BUSY: as above. NOT_AVAILABLE: the pool was the parent's.
template <typename Body>
pinrail_status_t on_pool(const pinrail_mpool_t* pool, Body&& body) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  return is_inherited(pool) ? PINRAIL_ERR_NOT_AVAILABLE : guarded(body);
}

// Calls body(work) and returns its status. BUSY: inside a registrar, where the work could wait for its own thread.
// NOT_AVAILABLE: in a forked child, which has no helper threads. After the pool was destroyed the work is detached:
// its pool is not read.
template <typename Work, typename Body>
pinrail_status_t on_work(Work* work, Body&& body) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if (work->is_inherited()) return PINRAIL_ERR_NOT_AVAILABLE;
  const pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (thread->in_registrar != 0) return PINRAIL_ERR_BUSY;
  return guarded([&] { return body(work); });
}

}  // namespace pinrail::api

#endif
