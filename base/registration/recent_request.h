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
  static constexpr size_t kCount = 1024;  // entries per thread: 64 KiB

  uintptr_t addr;
  const void* pool;
  uint32_t access;       // requests with flags are not stored
  uint32_t longest;      // the longest request at addr that is answered, in bytes; 0: none. Atomic
  uint32_t near;         // index of the registration's near slot in pinrail_thread_t::ref_slots
  uint32_t version;      // of the bucket when it had the entry
  uint64_t tag;          // a reference slot that names the registration, with count 0
  uint64_t generation;   // of the registration
  uint32_t* date;        // the timestamp of the entry, in its bucket of the start table. Atomic
  uint64_t* hits;        // the counter to increment
};
static_assert(sizeof(RecentRequest) == 64, "one line of memory");

}  // namespace pinrail

#endif
