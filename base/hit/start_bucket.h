// SPDX-License-Identifier: BSD-3-Clause
// start_bucket.h - a bucket of the start table (start_table.h): one cache line with three entries and a seqlock
// version. An entry is a page number, an extent, an incarnation and a timestamp. Entries are passed as a pointer to
// their page number.
//
// Threads  the index changes buckets under its lock; readers read at any time and store timestamps.
// Hook     All functions.
//
// start_bucket/L1  The version is odd while the bucket is changed. A reader that sees the same even version before and
//     after its reads has read consistent fields. The version only rises, so an unchanged version proves that no entry
//     has left the bucket.
// start_bucket/L2  Timestamps are not covered by the version. Readers store them at any time; only the order of
//     eviction depends on them.
// start_bucket/L3  The incarnation is stored before the extent and stays when the extent is cleared, so an extent that
//     was read has a valid incarnation.
#ifndef PINRAIL_BASE_HIT_START_BUCKET_H
#define PINRAIL_BASE_HIT_START_BUCKET_H

#include <cstddef>

#include "base/core/likely.h"
#include "base/lru/epoch.h"
#include "base/registration/shortcut.h"

namespace pinrail::start_bucket {

using Bucket = pinrail_start_bucket_t;
using Entry = uint32_t;  // its page, that is

constexpr unsigned kEntries = PINRAIL_START_ENTRIES;
static_assert(sizeof(Bucket) == 64 && alignof(Bucket) == 64, "one line of memory");

// acquire: pair with the release stores of the index (vma_start_table.cc).
inline uint32_t load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
constexpr bool is_changing(uint32_t version) { return (version & 1) != 0; }

// Returns the bucket of an entry or of a timestamp.
inline Bucket* bucket_of(const uint32_t* part) {
  const uintptr_t line = reinterpret_cast<uintptr_t>(part) & ~uintptr_t{sizeof(Bucket) - 1};
  return reinterpret_cast<Bucket*>(line);  // NOLINT(performance-no-int-to-ptr): the one that it is a part of
}
inline uint32_t version_of(const uint32_t* part) { return load(&bucket_of(part)->version); }

// Pages, timestamps and extents have one size and follow each other; incarnations are twice as large.
static_assert(offsetof(Bucket, pages) - offsetof(Bucket, dates) == kEntries * sizeof(Entry) &&
                  offsetof(Bucket, extents) - offsetof(Bucket, pages) == kEntries * sizeof(Entry),
              "one after the other");
inline uint32_t* date_of(const Entry* entry) { return const_cast<uint32_t*>(entry) - kEntries; }
inline const Entry* entry_of(const uint32_t* date) { return date + kEntries; }
inline uint32_t* extent_of(const Entry* entry) { return const_cast<uint32_t*>(entry) + kEntries; }
inline uint64_t* incarnation_of(const Entry* entry) {
  constexpr uintptr_t kAhead = offsetof(Bucket, incarnations) - 2 * offsetof(Bucket, pages);
  const uintptr_t from_start = reinterpret_cast<uintptr_t>(entry) & (sizeof(Bucket) - 1);
  return reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(entry) + from_start + kAhead);  // NOLINT
}

// Whether it is an entry of this incarnation; a free one is none.
inline bool is_of(const Entry* entry, uint64_t incarnation) {
  return load(incarnation_of(entry)) == incarnation && load(extent_of(entry)) != 0;
}

// Records a use in that epoch; stored only if it changes, so that hits in one epoch share the line.
inline void use(uint32_t* date, uint64_t epoch) {
  const uint32_t now = epoch::short_date(epoch);
  if (unlikely(__atomic_load_n(date, __ATOMIC_RELAXED) != now)) __atomic_store_n(date, now, __ATOMIC_RELAXED);
}
inline uint64_t last_use(const uint32_t* date, uint64_t now) {
  return epoch::epoch_of(__atomic_load_n(date, __ATOMIC_RELAXED), now);
}

}  // namespace pinrail::start_bucket

#endif
