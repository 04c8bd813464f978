// SPDX-License-Identifier: BSD-3-Clause
// recent_request.h - one request of a thread and the entry of the start table that answered it. This is the layout
// only, because a thread's memory contains a table of these; base/hit/recent.h has the functions.
//
// Threads  each table belongs to one thread; others only set `longest` to 0 (references::forget_notes).
#ifndef PINRAIL_BASE_REGISTRATION_RECENT_REQUEST_H
#define PINRAIL_BASE_REGISTRATION_RECENT_REQUEST_H

#include <pinrail/types.h>

namespace pinrail {

// All zero: answers nothing.
struct alignas(64) RecentRequest {
  const void* pool;
  uint32_t access;      // requests with flags are not stored
  uint32_t longest;     // the longest request that is answered, in bytes; 0: none. Atomic
  uint64_t* near;       // the thread's near slot for the registration
  uint64_t tag;         // a reference slot that names the registration, with count 0
  uint64_t generation;  // of the registration
  uint32_t* date;       // the timestamp of the entry, in its bucket of the start table. Atomic
  uint64_t* hits;       // the counter to increment
  uint32_t version;     // of the bucket when it had the entry
};
static_assert(sizeof(RecentRequest) == 64, "one line of memory");

// The table of one thread: 72 KiB. The keys have an array of their own, which is small enough for the first-level
// cache: requests that do not repeat leave the entries alone, which would replace all else there.
struct RecentRequests {
  static constexpr size_t kCount = 1024;

  RecentRequest entries[kCount];
  uintptr_t keys[kCount];  // of the request in the entry; or of one that was made once (recent::once())
};

}  // namespace pinrail

#endif
