// SPDX-License-Identifier: BSD-3-Clause
// match.h - whether a registration answers a request, as the pool compares them; hits do it in
// base/hit/allocation_table.h.
//
// Threads  the caller holds the cache lock, or has counted a reference of the registration.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_MATCH_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_MATCH_H

#include "components/common/gpu_pool/gpu_pool.h"

namespace pinrail::gpu_pool {

static_assert(allocation_table::kImporters == slots::kImporters, "hits compare as much of a slot's word");
static_assert(allocation_table::kEnded == slots::EndMark::kEnded, "and know the end of an exporter by it");
static_assert(allocation_table::kWordShift == slots::kGenerationShift, "what an entry keeps of it is its generation");

// The hash of a Key or a Name in the pool's Table.
template <typename Named>
uint64_t hash_of(const Named& named) {
  return allocation_table::hash_of(((named.start ^ named.segment) + named.pid) ^ named.base).first;
}

// Whether the memory is still allocated, as its validity slot and its exporter's end mark say. True if it has no slot.
inline bool is_current(const pinrail_registration_t* reg) {
  const Identity& identity = identity_of(reg);
  return identity.slot == nullptr ||
         (slots::is_alive(identity.slot, identity.slot_word) && !area_of(reg).peer->has_ended());
}

inline bool is_same_range(const Identity& identity, const Key& key) {
  return identity.base == key.base && identity.length == key.length && identity.pid == key.pid &&
         identity.start == key.start && identity.segment == key.segment;
}

inline bool is_same_memory(const Identity& identity, const Key& key) {
  return is_same_range(identity, key) && identity.id == key.id &&
         (key.slot_word == 0 || identity.slot_word == key.slot_word);
}

}  // namespace pinrail::gpu_pool

#endif
