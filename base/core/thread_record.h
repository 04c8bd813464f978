// SPDX-License-Identifier: BSD-3-Clause
// thread_record.h - the record of a thread, which the public headers leave opaque.
//
// Threads  The thread that a record belongs to reads and writes it; base/registration/thread.h makes it.
#ifndef PINRAIL_BASE_CORE_THREAD_RECORD_H
#define PINRAIL_BASE_CORE_THREAD_RECORD_H

#include <pinrail/component.h>

namespace pinrail {
struct RecentRequests;
}

struct pinrail_thread {
  size_t size;                      // 0: the null record, or one of the parent process
  uint32_t index;                   // small, dense; used again when the thread has ended
  uint32_t in_registrar;            // how many registrar calls this thread is inside
  pinrail::RecentRequests* recent;  // its own: base/hit/recent.h
  void* spares;                     // free registrations for the thread's next ones, linked through `base`
  uint32_t spare_count;             // how many these are
};

#endif
