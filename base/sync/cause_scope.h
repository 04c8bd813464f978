// SPDX-License-Identifier: BSD-3-Clause
// cause_scope.h - names what reports the memory events of this thread, for what pools record.
//
// Threads  each object is its thread's own.
// Hook     All functions.
#ifndef PINRAIL_BASE_SYNC_CAUSE_SCOPE_H
#define PINRAIL_BASE_SYNC_CAUSE_SCOPE_H

#include "base/sync/deferred_hook.h"

namespace pinrail::deferred {

// While it exists, this thread's events have that cause, a text that lives as long.
class CauseScope {
 public:
  explicit CauseScope(const char* cause) : before_(state.cause) { state.cause = cause; }
  ~CauseScope() { state.cause = before_; }
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;

 private:
  const char* const before_;
};

}  // namespace pinrail::deferred

#endif
