// SPDX-License-Identifier: BSD-3-Clause
// no_cancel.h - disables cancellation of its thread for a scope: for code with system calls that are cancellation
// points.
//
// Threads  An object is used by one thread, which also destroys it.
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_NO_CANCEL_H
#define PINRAIL_BASE_CORE_NO_CANCEL_H

#include <pthread.h>

namespace pinrail {

class NoCancel {
 public:
  NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_;
};

}  // namespace pinrail

#endif
