// SPDX-License-Identifier: BSD-3-Clause
// match.h - whether a registration answers a request.
//
// Threads  the caller holds the cache lock, or a reference of the registration.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_MATCH_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_MATCH_H

#include "components/common/gpu_pool/gpu_pool.h"

namespace pinrail::gpu_pool {

// The hash of a Key or an Identity in the pool's Table: of the exporter and the base.
template <typename Named>
uint64_t hash_of(const Named& named) {
  const uint64_t exporter = ((named.start ^ named.segment) + named.pid) * 0xD6E8FEB86659FD93u;
  const uint64_t hash = (exporter ^ exporter >> 32 ^ named.base) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

// The hash of an allocation in the table of hints: of the same and its buffer id, so that what is stale has another.
template <typename Named>
uint64_t hint_hash_of(const Named& named) {
  const uint64_t hash = (hash_of(named) ^ named.id) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
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
