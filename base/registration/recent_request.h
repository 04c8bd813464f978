// SPDX-License-Identifier: BSD-3-Clause
// recent_request.h - one request of a thread and the registration that answered it. This is the layout only, because a
// thread's memory contains a table of these; base/hit/recent.h has the functions.
//
// Threads  each table belongs to one thread.
#ifndef PINRAIL_BASE_REGISTRATION_RECENT_REQUEST_H
#define PINRAIL_BASE_REGISTRATION_RECENT_REQUEST_H

#include <pinrail/types.h>

namespace pinrail {

// All zero: answers nothing.
struct alignas(64) RecentRequest {
  uintptr_t addr;
  const void* pool;
  size_t covered;  // bytes that the registration has from addr on: the longest request that it answers
  pinrail_registration_t* reg;
  uint64_t generation;  // of the registration
  uint32_t access;      // that was asked for; requests with flags are not stored
};
static_assert(sizeof(RecentRequest) == 64, "one line of memory");

// The table of one thread: 64 KiB.
struct RecentRequests {
  static constexpr size_t kCount = 1024;

  RecentRequest entries[kCount];
};

}  // namespace pinrail

#endif
