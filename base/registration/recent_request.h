// SPDX-License-Identifier: BSD-3-Clause
// recent_request.h - one request of a thread and the registration that answered it. This is the layout only, because a
// thread's memory contains a table of these; base/hit/recent.h has the functions.
//
// Threads  each table belongs to one thread.
#ifndef PINRAIL_BASE_REGISTRATION_RECENT_REQUEST_H
#define PINRAIL_BASE_REGISTRATION_RECENT_REQUEST_H

#include <pinrail/types.h>

namespace pinrail {

struct alignas(64) RecentRequest {
  static constexpr unsigned kBits = 6;
  static constexpr size_t kCount = size_t{1} << kBits;  // entries per thread: 4 KiB
  static constexpr char kNoPool = 0;                    // its address differs from every pool's

  uintptr_t addr = 0;
  size_t length = 0;
  const void* pool = &kNoPool;
  uint32_t access = 0;  // requests with flags are not stored
  uint32_t twice = 0;   // low 32 bits of the page number of a request that was seen twice
  pinrail_registration_t* reg = nullptr;
  uint64_t state_word = 0;  // the bits of reg's state word that must be unchanged at the next hit
  uint64_t* hits = nullptr;
  uintptr_t candidate = 0;  // address of the last request that mapped to this entry
};

}  // namespace pinrail

#endif
