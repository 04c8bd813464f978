// SPDX-License-Identifier: BSD-3-Clause
// recent.h - a per-thread table of recent requests and the entries of the start table that answered them: the first
// lookup of a register call. A request that repeats needs no search, only a look at the version of the entry's bucket.
//
// Owns     nothing. The registration of an entry may be gone; the version tells.
// Threads  each table belongs to one thread.
// Context  API.
//
// recent/Q1  An entry answers a request at its address, for its pool and access, that is not longer than what the start
//     table's entry covers; and only if the bucket has the version that it had then. start_table/S1 holds for it as for
//     a lookup: the reference is counted, and then the version is read again.
// recent/Q2  The versions have 32 bits. The entries that point into a start table are cleared, with its notes, before a
//     version can come again (vma_start_table/S5) and before the table goes (note/N3).
#ifndef PINRAIL_BASE_HIT_RECENT_H
#define PINRAIL_BASE_HIT_RECENT_H

#include <algorithm>
#include <cstddef>

#include "base/core/likely.h"
#include "base/core/stat_counter.h"
#include "base/hit/start_table.h"
#include "base/registration/recent_request.h"

namespace pinrail::recent {

using Entry = RecentRequest;

// The key of a request decides its place in the table. Where the pool is known it stands for the address.
inline uintptr_t key_of(const void* pool, uintptr_t addr) { return addr ^ reinterpret_cast<uintptr_t>(pool); }

// Where a request belongs in the table.
struct Place {
  Entry* entry;
  uintptr_t* key;
};

// The place of an entry of this table, `offset` bytes from its begin.
__attribute__((always_inline)) inline Place place_at(void* table, uintptr_t offset) {
  constexpr size_t kKeysInEntry = sizeof(Entry) / sizeof(uintptr_t);
  auto* const begin = static_cast<char*>(table);
  return {reinterpret_cast<Entry*>(begin + offset),
          reinterpret_cast<uintptr_t*>(begin + offsetof(RecentRequests, keys) + offset / kKeysInEntry)};
}
inline Place place_of(const pinrail_thread_t* thread, const Entry* entry) {
  return place_at(thread->recent, static_cast<uintptr_t>(reinterpret_cast<const char*>(entry) -
                                                         static_cast<const char*>(thread->recent)));
}

// Buffers at equal distances, of any power of two from 64 bytes to 64 MiB, get entries of their own, but for two of
// 1,024: the product adds the three groups of ten address bits from bit 6 on, so that any ten bits in a row decide the
// ten bits of the index. So do the pools of one buffer, which lie apart.
__attribute__((always_inline)) inline Place place_of(const pinrail_thread_t* thread, uintptr_t key) {
  constexpr unsigned kBits = 10;
  static_assert(RecentRequests::kCount == 1 << kBits, "a group is an index");
  constexpr uintptr_t kAdd = 1 + (uintptr_t{1} << kBits) + (uintptr_t{1} << 2 * kBits);
  constexpr uintptr_t kMask = (RecentRequests::kCount - 1) * sizeof(Entry);
  return place_at(thread->recent, key * kAdd >> 2 * kBits & kMask);
}

// Returns whether the entry was stored for such a request: key_of(pool, its address). A length of 0 wraps to the
// largest value.
__attribute__((always_inline)) inline bool matches(const Place& place, uintptr_t key, size_t length, const void* pool,
                                                   uint32_t access) {
  const Entry& entry = *place.entry;
  return likely(*place.key == key) && likely(entry.pool == pool) && likely(entry.access == access) &&
         likely(length - 1 < __atomic_load_n(&entry.longest, __ATOMIC_RELAXED));
}

inline pinrail_registration_t* reg_of(uint64_t tag) {
  return reinterpret_cast<pinrail_registration_t*>(tag >> 16);  // NOLINT(performance-no-int-to-ptr): a reference slot
}

// relaxed: only the owning thread changes it.
inline uint32_t* date_of(const Entry& entry) { return __atomic_load_n(&entry.date, __ATOMIC_RELAXED); }

// Why answer() has no answer. outdated: the bucket has changed, nothing was counted. slot_in_use, bucket_changed: as
// start_table::Taken.
enum class Refused : uint8_t { outdated, slot_in_use, bucket_changed };

// Takes a reference for a request that the entry matches, which is the pool's, and counts a hit; or returns what
// otherwise(Refused) does. Each reason calls it at a place of its own, so that the usual way prepares none of them.
template <typename Otherwise>
__attribute__((always_inline)) inline pinrail_status_t answer(const Entry& entry, const void* pool,
                                                              pinrail_handle_t* handle_out, Otherwise&& otherwise) {
  const uint32_t version = entry.version;
  const start_bucket::Bucket* const bucket = start_bucket::bucket_of(date_of(entry));
  if (unlikely(start_bucket::load(&bucket->version) != version)) return otherwise(Refused::outdated);
  uint64_t* const near = entry.near;
  const uint64_t word = references::load_slot(near);
  if (likely(references::count_of(word) == 0)) {
    references::store_slot(near, entry.tag + 1);
  } else if ((word ^ entry.tag) < references::kMaxCount) {
    references::store_slot(near, word + 1);
  } else {
    return otherwise(Refused::slot_in_use);
  }
  if (unlikely(start_bucket::load(&bucket->version) != version)) return otherwise(Refused::bucket_changed);
  const uint64_t generation = entry.generation;
  note::write(near, {date_of(entry), version, generation, pool});
  stat_counter::increment(entry.hits);
  *handle_out = {reg_of(entry.tag), generation};
  return PINRAIL_SUCCESS;
}

// The bucket has changed since the entry was stored, perhaps by another of its registrations: if the entry's own is
// still there, the request's entry gets the version that the bucket had before this look, and answer() may be tried
// again, which looks whether it has it still.
inline bool renew(Entry* entry) {
  const start_table::Entry* const start = start_bucket::entry_of(date_of(*entry));
  const uint32_t version = start_bucket::version_of(start);
  if (start_bucket::is_changing(version)) return false;
  const uint64_t own = incarnation::of(arena::number_of(reg_of(entry->tag)), entry->generation);
  if (!start_bucket::is_of(start, own)) return false;
  entry->version = version;
  return true;
}

// What is stored in the place of a request that was made once and has no entry: a key that belongs elsewhere, so that
// no request is taken for it.
constexpr uintptr_t once(uintptr_t key) { return key ^ sizeof(Entry); }

// Returns whether the last request that belongs here had this key, and no entry. If not, the next one may be: to fill
// entries for requests that do not repeat would cost more than it saves. place: Place::key.
inline bool is_asked_again(uintptr_t* place, uintptr_t key) {
  const uintptr_t last = *place;
  *place = once(key);
  return last == once(key);
}

// Stores a request that was answered by this entry of the start table, for whatever the registration covers from its
// address on. hits: the counter to increment at later hits.
inline void remember(const pinrail_thread_t* thread, uintptr_t addr, const void* pool, uint32_t access,
                     const start_table::Found& found, uint64_t* hits) {
  const uintptr_t key = key_of(pool, addr);
  const Place place = place_of(thread, key);
  Entry* const entry = place.entry;
  *place.key = key;
  entry->pool = pool;
  entry->access = access;
  entry->near = references::near_ref_slot(thread, found.reg);
  entry->version = found.version;
  entry->tag = references::tag_of(found.reg);
  entry->generation = found.generation;
  entry->hits = hits;
  // relaxed: others only look which table it points into, and clear the entry.
  __atomic_store_n(&entry->date, start_bucket::date_of(found.entry), __ATOMIC_RELAXED);
  const size_t covered = span_of(found.reg).end - addr;
  __atomic_store_n(&entry->longest, static_cast<uint32_t>(std::min<size_t>(covered, UINT32_MAX)), __ATOMIC_RELAXED);
}

}  // namespace pinrail::recent

#endif
