// SPDX-License-Identifier: BSD-3-Clause
// mrall_cache.h - what the pools of one cache name have registered together, and their budget (R8, R11).
//
// Owns     numbers, and the list of all registrations that the device knows or is about to know.
// Threads  all functions may run together. API context.
#ifndef PINRAIL_COMPONENTS_MPOOL_MRALL_CACHE_H
#define PINRAIL_COMPONENTS_MPOOL_MRALL_CACHE_H

#include <vector>

#include "components/common/cache_list/cache_list.h"

namespace pinrail::mrall {

using cache_list::area_of;

class Cache : public cache_list::CacheList {
 public:
  using CacheList::CacheList;

  // Whether the limits would hold one more of that length if so many had left.
  bool has_room_without(uint64_t leaving_bytes, uint64_t leaving_count, uint64_t bytes) const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    return budget_.could_ever_hold(bytes) && budget_.missing_bytes(bytes) <= leaving_bytes &&
           budget_.missing_count() <= leaving_count;
  }

  // Bytes that at least one registration covers. May throw bad_alloc.
  uint64_t pinned_bytes() const EXCLUDES(mutex_) {
    std::vector<Span> spans;
    spans.reserve(usage().count + 64);
    {
      Guard guard(mutex_);
      for_each_locked([&](const pinrail_registration_t* reg) { spans.push_back(span_of(reg)); });
    }
    return union_length(&spans);
  }
};

}  // namespace pinrail::mrall

#endif
