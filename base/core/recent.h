// SPDX-License-Identifier: BSD-3-Clause
// recent.h - what a thread asked for lately, and got: the first look of a register call. Buffers that are used over and
// over are asked for in the same words each time; then all that was checked before need not be checked again.
//
// Owns     nothing: an entry is a guess, and what it names may be gone. The state word tells.
// Threads  each table belongs to one thread.
//
// recent/Q1  An entry is used only if every argument is as it was, and the registration is indexed, unsealed and of the
//     same life once the reference has been counted: then it still answers, for it has not changed meanwhile.
// recent/Q2  Only registrations that are counted per thread are remembered, and only what was asked for three times
//     while nothing else was that has the same entry: of a thousand buffers in random order hardly any.
#ifndef PINRAIL_BASE_CORE_RECENT_H
#define PINRAIL_BASE_CORE_RECENT_H

#include "base/core/references.h"

namespace pinrail::recent {

constexpr unsigned kBits = 6;
constexpr size_t kEntries = size_t{1} << kBits;  // 4 KiB per thread
inline constexpr char kNobody = 0;               // its address is no caller's pool
constexpr uint64_t kLife = state::kGenerationMask | state::kIndexed | state::kSealed | state::kPerThread;
constexpr uint64_t kUsual = state::kIndexed | state::kPerThread;

struct alignas(64) Entry {
  uintptr_t addr = 0;
  size_t length = 0;
  const void* pool = &kNobody;
  uint32_t how = 0;    // access; with flags nothing is remembered
  uint32_t twice = 0;  // the page of what was asked for twice
  pinrail_registration_t* reg = nullptr;
  uint64_t life = 0;  // of the state word
  uint64_t* hits = nullptr;
  uintptr_t candidate = 0;  // asked for last
};

inline Entry& entry_for(const pinrail_thread_t* thread, uintptr_t addr) {
  const size_t at = (addr * 0x9E3779B97F4A7C15u) >> (64 - kBits);
  return static_cast<Entry*>(thread->recent)[at];
}

// Whether the entry was made by such a request.
inline bool matches(const Entry& entry, uintptr_t addr, size_t length, const void* pool, uint32_t how) {
  return entry.addr == addr && entry.length == length && entry.pool == pool && entry.how == how;
}

// Whether its registration, which the caller has just counted, answers still.
inline bool is_alive(const Entry& entry) { return (state::load(entry.reg) & kLife) == entry.life; }

// What was asked for last is asked for again: whether that happened before.
inline bool is_asked_again(Entry* entry, uintptr_t addr) {
  const auto page = static_cast<uint32_t>(addr >> 12);
  const bool again = entry->twice == page;
  entry->twice = page;
  return again;
}

// A registration that the caller holds answered; hits: what to count on the next ones.
inline void remember(Entry* entry, uintptr_t addr, size_t length, const void* pool, uint32_t how,
                     pinrail_registration_t* reg, uint64_t* hits) {
  const uint64_t life = state::load(reg) & kLife;
  if ((life & ~state::kGenerationMask) != kUsual) return;
  *entry = {addr, length, pool, how, 0, reg, life, hits, addr};
}

}  // namespace pinrail::recent

#endif
