// SPDX-License-Identifier: BSD-3-Clause
// recent.h - what a thread asked for lately, and got: the first look of a register call. Buffers that are used over and
// over are asked for in the same words each time; then all that was checked before need not be checked again.
//
// Owns     nothing: an entry is a guess, and what it names may be gone. The state word tells.
// Threads  each table belongs to one thread.
//
// recent/Q1  An entry is used only if every argument is as it was, and the registration is indexed, unclaimed and of
// the
//     same state_word once the reference has been counted: then it still answers, for it has not changed meanwhile.
// recent/Q2  Only registrations that are counted per thread are remembered, and only what was asked for three times
//     while nothing else was that has the same entry: of a thousand buffers in random order hardly any.
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

// Whether the entry was made by such a request.
inline bool matches(const Entry& entry, uintptr_t addr, size_t length, const void* pool, uint32_t access) {
  return entry.addr == addr && entry.length == length && entry.pool == pool && entry.access == access;
}

// Whether its registration, which the caller has just counted, answers still.
inline bool is_alive(const Entry& entry) { return (state::load(entry.reg) & kTakeMask) == entry.state_word; }

// What was asked for last is asked for again: whether that happened before.
inline bool is_asked_again(Entry* entry, uintptr_t addr) {
  const auto page = static_cast<uint32_t>(addr >> 12);
  const bool again = entry->twice == page;
  entry->twice = page;
  return again;
}

// A registration that the caller holds answered; hits: what to count on the next ones.
inline void remember(Entry* entry, uintptr_t addr, size_t length, const void* pool, uint32_t access,
                     pinrail_registration_t* reg, uint64_t* hits) {
  const uint64_t state_word = state::load(reg) & kTakeMask;
  if ((state_word & ~state::kGenerationMask) != kUsual) return;
  *entry = {addr, length, pool, access, 0, reg, state_word, hits, addr};
}

}  // namespace pinrail::recent

#endif
