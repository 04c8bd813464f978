// SPDX-License-Identifier: BSD-3-Clause
// call_scope.h - calls of the C face that may take locks, and what may be called inside them.
//
// Threads  each knows of itself alone.
#ifndef PINRAIL_BASE_SYNC_CALL_SCOPE_H
#define PINRAIL_BASE_SYNC_CALL_SCOPE_H

#include "base/sync/deferred_hook.h"

namespace pinrail::deferred {

// One call of the C face that may take locks. A signal handler that interrupted one may not make another: the lock that
// it would wait for may be its own thread's. Calls from inside a registrar are none of a handler: see CallerScope.
class Call {
 public:
  Call() : entered_(state.calls == 0 && state.depth.depth == 0) {
    if (entered_) state.calls = 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Call() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (entered_) state.calls = 0;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // False: this thread is inside another call.
  explicit operator bool() const { return entered_; }

 private:
  const bool entered_;
};

// While an embedder's function runs, which may call us again.
class CallerScope {
 public:
  CallerScope() : calls_(state.calls) { state.calls = 0; }
  ~CallerScope() { state.calls = calls_; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

 private:
  const uint32_t calls_;
};

}  // namespace pinrail::deferred

#endif
