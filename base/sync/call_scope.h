// SPDX-License-Identifier: BSD-3-Clause
// call_scope.h - marks calls of the API that may take locks, so that a signal handler cannot make one on top of
// another.
//
// Threads  All state is the calling thread's own; a scope must end on the thread that made it.
// Context  API.
#ifndef PINRAIL_BASE_SYNC_CALL_SCOPE_H
#define PINRAIL_BASE_SYNC_CALL_SCOPE_H

#include "base/core/calling_thread.h"
#include "base/core/compiler.h"
#include "base/sync/deferred_hook.h"

namespace pinrail::deferred {

// One call of the API that may take locks. It is no cancellation point, nor is what it calls. A signal handler that
// interrupted such a call may not make another: the lock that it would wait for may be held by its own thread. A
// registrar's callback may call the API again: CallerScope permits it.
class Call : NonCopyable {
 public:
  Call() : entered_(state.calls == 0 && state.depth.depth == 0) {
    if (entered_) state.calls = 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Call() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (entered_) state.calls = 0;
  }
  // False if this thread is already inside another call, or holds a lock that hooks take. The API then returns BUSY.
  explicit operator bool() const { return entered_; }

 private:
  const NoCancel no_cancel_;
  const bool entered_;
};

// Exists while an embedder's function runs, which may call the API again.
class CallerScope : NonCopyable {
 public:
  CallerScope() : calls_(state.calls) { state.calls = 0; }
  ~CallerScope() { state.calls = calls_; }

 private:
  const uint32_t calls_;
};

// While it exists, this thread's events have that cause, a text that lives as long.
class CauseScope : NonCopyable {
 public:
  explicit CauseScope(const char* cause) : before_(state.cause) { state.cause = cause; }
  ~CauseScope() { state.cause = before_; }

 private:
  const char* const before_;
};

}  // namespace pinrail::deferred

#endif
