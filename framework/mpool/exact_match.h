// SPDX-License-Identifier: BSD-3-Clause
// exact_match.h - does a registration answer a request? As the pool compares them under its lock; hits do it in
// base/core/allocations.h.
//
// Threads  what reads a slot at any time, the rest under the lock of the cache.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_MATCH_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_MATCH_H

#include "framework/mpool/exact_pool.h"

namespace pinrail::exact {

static_assert(allocations::kImporters == slots::kImporters, "hits compare as much of a slot's word");
static_assert(allocations::kWordShift == slots::kGenerationShift, "what an entry keeps of it is its generation");

// A place in the table that is asked under the lock. Of a Key or a Name.
template <typename Named>
uint64_t hash_of(const Named& named) {
  return allocations::hash_of(((named.start ^ named.segment) + named.pid) ^ named.base).first;
}

inline bool is_current(const std::atomic<uint64_t>* slot, uint64_t life) {
  return slot == nullptr || slots::is_alive(slot, life);
}

inline bool is_same_range(const Name& name, const Key& key) {
  return name.base == key.base && name.length == key.length && name.pid == key.pid && name.start == key.start &&
         name.segment == key.segment;
}

inline bool is_same_memory(const Name& name, const Key& key) {
  return is_same_range(name, key) && name.id == key.id && (key.life == 0 || name.life == key.life);
}

}  // namespace pinrail::exact

#endif
