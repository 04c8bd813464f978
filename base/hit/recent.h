// SPDX-License-Identifier: BSD-3-Clause
// recent.h - a per-thread table of recent requests and the registrations that answered them: the first lookup of a
// register call. If a request repeats in all its arguments, only the registration's state word must be checked.
//
// Owns     nothing. The registration of an entry may be gone; its state word tells.
// Threads  each table belongs to one thread.
//
// recent/Q1  An entry answers only if every argument is equal and, after the reference was counted, the state word is
//     unchanged in all bits of kTakeMask: indexed, not claimed, same generation.
// recent/Q2  Only registrations that are counted per thread are stored, and only requests that were made three times in
//     a row among those that map to the entry. So random requests over a thousand buffers rarely replace entries.
#ifndef PINRAIL_BASE_HIT_RECENT_H
#define PINRAIL_BASE_HIT_RECENT_H

#include "base/registration/recent_request.h"
#include "base/registration/references.h"

namespace pinrail::recent {

constexpr uint64_t kTakeMask = state::kGenerationMask | state::kIndexed | state::kEvictClaim | state::kPerThread;
constexpr uint64_t kUsual = state::kIndexed | state::kPerThread;

using Entry = RecentRequest;

inline Entry& entry_for(const pinrail_thread_t* thread, uintptr_t addr) {
  const size_t at = (addr * 0x9E3779B97F4A7C15u) >> (64 - RecentRequest::kBits);
  return static_cast<Entry*>(thread->recent)[at];
}

// Returns whether the entry stores a request with these arguments.
inline bool matches(const Entry& entry, uintptr_t addr, size_t length, const void* pool, uint32_t access) {
  return entry.addr == addr && entry.length == length && entry.pool == pool && entry.access == access;
}

// Returns whether the entry's registration still answers. The caller has counted a reference of it, and rolls that back
// if not.
inline bool is_alive(const Entry& entry) { return (state::load(entry.reg) & kTakeMask) == entry.state_word; }

// For a request that equals the entry's candidate: returns whether it was repeated before, and notes that it is
// repeated now.
inline bool is_asked_again(Entry* entry, uintptr_t addr) {
  const auto page = static_cast<uint32_t>(addr >> 12);
  const bool again = entry->twice == page;
  entry->twice = page;
  return again;
}

// Stores a request and the registration that answered it, if that is indexed, not claimed and counted per thread. The
// caller holds a reference of it. hits: the counter to increment at later hits.
inline void remember(Entry* entry, uintptr_t addr, size_t length, const void* pool, uint32_t access,
                     pinrail_registration_t* reg, uint64_t* hits) {
  const uint64_t state_word = state::load(reg) & kTakeMask;
  if ((state_word & ~state::kGenerationMask) != kUsual) return;
  *entry = {addr, length, pool, access, 0, reg, state_word, hits, addr};
}

}  // namespace pinrail::recent

#endif
