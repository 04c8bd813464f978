// SPDX-License-Identifier: BSD-3-Clause
// no_cancel.h - while one lives, its thread is not cancelled: for what makes system calls that are cancellation points.
//
// Threads  each belongs to one thread.
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
