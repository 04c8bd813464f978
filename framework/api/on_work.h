// SPDX-License-Identifier: BSD-3-Clause
// on_work.h - how calls on a pool begin, and those on a handle of something that helper threads do for it.
//
// Threads  all functions may run together. API context; the caller holds no lock.
#ifndef PINRAIL_FRAMEWORK_API_ON_WORK_H
#define PINRAIL_FRAMEWORK_API_ON_WORK_H

#include "base/core/guarded.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "framework/api/api_fork.h"

namespace pinrail::api {

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
