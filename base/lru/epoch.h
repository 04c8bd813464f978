// SPDX-License-Identifier: BSD-3-Clause
// epoch.h - the epoch: a process-wide word that is incremented at each search for a victim. Uses are
// dated with it. Hits only read it, so they do not contend for its cache line.
//
// Threads  All functions may run together.
// Hook     All functions; no lock.
//
// epoch/E1  The epoch only rises, and is never 0.
// epoch/E2  A short date is the low half of an epoch, for tables of small entries (start_bucket.h). It is read as one
//     of the last four billion epochs, or as one of the next 65,536 epochs, which the reader has not seen yet.
#ifndef PINRAIL_BASE_LRU_EPOCH_H
#define PINRAIL_BASE_LRU_EPOCH_H

#include <cstdint>

namespace pinrail::epoch {

constexpr uint64_t kFirst = 1;

// relaxed, here and below: only the order of eviction depends on it.
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
// Begins the next epoch and returns it; no other call returns the same one.
inline uint64_t move_on(uint64_t* word) { return __atomic_add_fetch(word, 1, __ATOMIC_RELAXED); }

constexpr uint32_t short_date(uint64_t epoch) { return static_cast<uint32_t>(epoch); }
// Returns the epoch that a short date means if the current epoch is `now`.
constexpr uint64_t epoch_of(uint32_t date, uint64_t now) {
  constexpr uint32_t kUnseen = 1 << 16;
  return now + kUnseen - static_cast<uint32_t>(short_date(now) + kUnseen - date);
}
static_assert(epoch_of(7, 7) == 7 && epoch_of(9, 7) == 9 && epoch_of(3, 7) == 3, "before, now and later");
static_assert(epoch_of(0xffffffff, 0x100000007) == 0xffffffff && epoch_of(1, 0xffffffff) == 0x100000001, "round");

}  // namespace pinrail::epoch

#endif
