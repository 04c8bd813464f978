// SPDX-License-Identifier: BSD-3-Clause
// start_table.h - which registration starts at this address? The readers' side of a cuckoo hash table that an index
// offers. Most hits ask for the very start of a buffer and find all they need in one bucket (start_bucket.h), without
// reading the registration. Each key has two buckets, which are fetched at the same time.
//
// The table may always answer "not found"; then the caller asks the index. So readers need no lock.
//
// Owns     nothing. The index owns the table (pinrail_start_table_t) and changes it while others read.
// Threads  all functions at any time. None of them waits.
// Hook     All functions but take(), take_first() and note_entry().
//
// start_table/S1  An entry names a registration only while that is indexed and not claimed. A thread that claims or
//     kills one changes its state word first, then removes its entry, which changes the bucket's version, and then sums
//     after a membarrier (references.h). So if a reader counts a reference of the registration of an entry, and
//     afterwards sees the version unchanged, every later sum includes its reference; it need not read the registration.
// start_table/S2  Only registrations that are counted per thread are in the table, so a count that meets a later
//     incarnation of the memory is harmless.
#ifndef PINRAIL_BASE_HIT_START_TABLE_H
#define PINRAIL_BASE_HIT_START_TABLE_H

#include "base/core/select.h"
#include "base/hit/note.h"
#include "base/hit/start_bucket.h"
#include "base/registration/incarnation.h"
#include "base/registration/references.h"
#include "base/registration/registration_arena.h"

namespace pinrail::start_table {

using incarnation::generation_of;
using incarnation::number_of;
using start_bucket::Bucket;
using start_bucket::Entry;
using start_bucket::load;

// A start address is a page number. An entry's page is its low 32 bits; the extent holds the rest.
constexpr unsigned kPageShift = 12;
constexpr unsigned kHighPageShift = kPageShift + 32;
// An extent, from the upper to the lower bits: the rest of the page number, the length in pages, a bit that is set in
// used entries, the access.
constexpr unsigned kStartAt = 28;
constexpr uintptr_t kMaxStart = (uintptr_t{1} << (kHighPageShift + 32 - kStartAt)) - 1;
constexpr unsigned kLengthAt = 7;  // length in whole pages; a request in the last, partial page is left to the index
constexpr uint64_t kMaxLength = uint64_t{1} << (kStartAt - kLengthAt + kPageShift);  // lengths are below this
constexpr uint32_t kBelowStart = (uint32_t{1} << kStartAt) - 1;
constexpr uint32_t kUsed = 1 << (kLengthAt - 1);
constexpr uint32_t kAccess = kUsed - 1;
constexpr unsigned kTraitsAt = 4;
constexpr unsigned kTraitsShift = 12;
constexpr uint32_t kTraits = PINRAIL_TRAITS_MASK >> kTraitsShift;
static_assert(PINRAIL_RIGHTS_MASK < 1 << kTraitsAt && kTraits >> kTraitsAt << kTraitsAt == kTraits && kTraits < kAccess,
              "rights, traits and length lie one above the other");
constexpr bool is_start(uintptr_t base) { return base <= kMaxStart && base % (uintptr_t{1} << kPageShift) == 0; }
constexpr Entry page_of(uintptr_t base) { return static_cast<Entry>(base >> kPageShift); }
constexpr uintptr_t base_of(Entry page, uint32_t extent) {
  return uintptr_t{extent >> kStartAt} << kHighPageShift | uintptr_t{page} << kPageShift;
}
constexpr uint32_t access_of(uint32_t access) { return (access | access >> kTraitsShift) & kAccess; }
constexpr uint64_t length_of(uint32_t extent) {
  static_assert(kPageShift > kLengthAt, "one shift takes the length to its place");
  return uint64_t{extent & (kBelowStart & ~(kUsed | kAccess))} << (kPageShift - kLengthAt);
}

// Two rounds: after one round, buffers at equal distances would fill some buckets and leave others empty.
inline uint64_t hash_of(uintptr_t base) {
  uint64_t hash = base * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
  return hash;
}
// The two hash values, between 0 and 2^32, that select a key's two buckets.
constexpr uint64_t first_place(uint64_t hash) { return hash >> 32; }
constexpr uint64_t second_place(uint64_t hash) { return hash & 0xffffffff; }

// Linear hashing: the table grows from its end, bucket by bucket. Hash values from `grown` on are mapped to `more`
// buckets already, the others still to `few`.
struct Size {
  uint64_t few, more, grown;
  size_t bucket_of(uint64_t place) const { return place * (place >= grown ? more : few) >> 32; }
};
// relaxed: a reader with a torn size reads within the allocated memory and, at worst, misses an entry.
inline Size size_of(const pinrail_start_table_t& table) {
  return {__atomic_load_n(&table.count, __ATOMIC_RELAXED), __atomic_load_n(&table.more, __ATOMIC_RELAXED),
          __atomic_load_n(&table.grown, __ATOMIC_RELAXED)};
}

// Returns the entry with this page in the two buckets, or any other entry if there is none. Branchless: the result
// cannot be predicted, and a misprediction would cost as much as the rest of a hit.
__attribute__((always_inline)) inline const Entry* entry_in(const Bucket* first, const Bucket* second, Entry page) {
  const Entry* entry = &first->pages[0];
  const auto consider = [&](const Entry* other) { entry = select_if_equal(entry, other, other, page); };
  consider(&first->pages[1]);
  consider(&first->pages[2]);
  consider(&second->pages[0]);
  consider(&second->pages[1]);
  consider(&second->pages[2]);
  return entry;
}

// Returns the entry of the registration that starts at base, or any other entry if the table has none; the caller
// compares.
inline const Entry* find(const pinrail_start_table_t& table, uintptr_t base) {
  const uint64_t hash = hash_of(base);
  const Size size = size_of(table);
  return entry_in(&table.buckets[size.bucket_of(first_place(hash))], &table.buckets[size.bucket_of(second_place(hash))],
                  page_of(base));
}

// As find(), in fewer instructions, of a table that does not grow. A table that began to grow meanwhile may have moved
// the entry.
inline bool is_at_rest(const pinrail_start_table_t& table) {
  return __atomic_load_n(&table.count, __ATOMIC_RELAXED) == __atomic_load_n(&table.more, __ATOMIC_RELAXED);
}
__attribute__((always_inline)) inline const Entry* find_at_rest(const pinrail_start_table_t& table, uintptr_t base) {
  const uint64_t count = __atomic_load_n(&table.count, __ATOMIC_RELAXED);  // relaxed: see size_of()
  const uint64_t hash = hash_of(base);
  return entry_in(&table.buckets[first_place(hash) * count >> 32], &table.buckets[second_place(hash) * count >> 32],
                  page_of(base));
}

// Returns whether the extent matches the upper bits of base, has all rights of access, and exactly its traits. False
// for a free entry. In 64 bits: a base above kMaxStart matches no extent.
inline bool answers(uint32_t extent, uintptr_t base, uint32_t access) {
  constexpr uint64_t kAll = ~uint64_t{kBelowStart} | kTraits;  // the bits that must be equal
  const uint64_t asked = access_of(access) | kUsed;
  return ((extent ^ (asked | base >> kHighPageShift << kStartAt)) & (asked | kAll)) == 0;
}

// An entry's fields as a lookup read them.
struct Found {
  const Entry* entry;
  pinrail_registration_t* reg;
  uint64_t generation;
  uint32_t version;
};

// Returns true if the entry, which find() returned, is of a registration that starts at base (page-aligned), covers
// base + offset + length and has the access, and is not being changed. Takes no reference.
__attribute__((always_inline)) inline bool read(const pinrail_start_table_t& table, const Entry* entry, uintptr_t base,
                                                size_t offset, size_t length, uint32_t access, Found* found_out) {
  const uint32_t version = start_bucket::version_of(entry);
  if (load(entry) != page_of(base) || start_bucket::is_changing(version)) return false;
  const uint32_t extent = load(start_bucket::extent_of(entry));
  // length_of() exceeds offset, and a length of 0 wraps to the largest value: one comparison refuses both.
  if (!answers(extent, base, access) || length - 1 >= length_of(extent) - offset) return false;
  const uint64_t incarnation = load(start_bucket::incarnation_of(entry));
  *found_out = {entry, arena::numbered(table.chunks, number_of(incarnation)), generation_of(incarnation), version};
  return true;
}

// Looks up and reads; false if the table has no answer.
inline bool look_up(const pinrail_start_table_t& table, uintptr_t base, size_t offset, size_t length, uint32_t access,
                    Found* found_out) {
  return read(table, find(table, base), base, offset, length, access, found_out);
}

// Returns whether the entry is unchanged, after a reference of found.reg was counted (start_table/S1). The use is dated
// by the release: what is held is not evicted.
__attribute__((always_inline)) inline bool is_unchanged(const Found& found) {
  return start_bucket::version_of(found.entry) == found.version;
}

inline note::Note note_of(const Found& found, const void* pool) {
  return {start_bucket::date_of(found.entry), found.version, found.generation, pool};
}

// Takes a reference of what was found. Returns false, with nothing counted, if it has changed since. pool: stored in
// the note for the release; NULL: store no note.
inline bool take(const pinrail_thread_t* thread, const Found& found, const void* pool, pinrail_handle_t* handle_out) {
  if (!references::count(thread, found.reg, 1)) return false;
  if (!is_unchanged(found)) {
    references::roll_back(thread, found.reg);
    return false;
  }
  if (pool != nullptr) note::write_if_near(thread, found.reg, note_of(found, pool));
  *handle_out = {found.reg, found.generation};
  return true;
}

// How take_first() ended. bucket_changed: a reference was counted, but the entry has changed; the caller must call
// references::roll_back(). That call is not made here, so that the inlined hit path contains no call.
enum class Taken : uint8_t { yes, slot_in_use, bucket_changed };

// As take(), for an entry that was already read, if the thread's near slot is free.
__attribute__((always_inline)) inline Taken take_first(const pinrail_thread_t* thread, const Found& found,
                                                       const void* pool, pinrail_handle_t* handle_out) {
  uint64_t* near = references::near_ref_slot(thread, found.reg);
  if (!references::count_first(near, found.reg)) return Taken::slot_in_use;
  if (!is_unchanged(found)) return Taken::bucket_changed;
  note::write(near, note_of(found, pool));
  *handle_out = {found.reg, found.generation};
  return Taken::yes;
}

// Returns the entry of the incarnation, whose start has this hash, by a look at each; NULL if there is none.
__attribute__((noinline)) inline Entry* search_entry(const pinrail_start_table_t& table, uint64_t hash,
                                                     uint64_t incarnation) {
  const Size size = size_of(table);
  for (const uint64_t place : {first_place(hash), second_place(hash)}) {
    for (Entry& entry : table.buckets[size.bucket_of(place)].pages) {
      if (start_bucket::is_of(&entry, incarnation)) return &entry;
    }
  }
  return nullptr;
}

// Returns the registration's entry; NULL if it has none. Index lock held, or the caller tolerates a stale answer. What
// find() returns is another one's if more than one begins at this page, with other rights or another length.
inline Entry* entry_of(const pinrail_start_table_t& table, const pinrail_registration_t* reg) {
  const uintptr_t base = span_of(reg).base;
  const uint64_t own = incarnation::of(arena::number_of(reg), pinrail::generation_of(reg));
  const Entry* const entry = find(table, base);
  return likely(start_bucket::is_of(entry, own)) ? const_cast<Entry*>(entry) : search_entry(table, hash_of(base), own);
}

// As look_up(), by the registration of a handle that the thread holds. False also if the table has another incarnation
// of it, or none.
inline bool look_up_held(const pinrail_start_table_t& table, pinrail_handle_t handle, Found* found_out) {
  const Entry* const entry = entry_of(table, handle.reg);
  if (entry == nullptr) return false;
  const uint32_t version = start_bucket::version_of(entry);
  const bool is_own = start_bucket::is_of(entry, incarnation::of(arena::number_of(handle.reg), handle.generation));
  if (!is_own || start_bucket::is_changing(version) || start_bucket::version_of(entry) != version) return false;
  *found_out = {entry, handle.reg, handle.generation, version};
  return true;
}

// Writes a note for an entry that was just inserted for a registration that the thread holds. The caller holds the
// index lock, so the bucket does not change.
inline void note_entry(const pinrail_thread_t* thread, const Entry* entry, const pinrail_registration_t* reg) {
  note::write_if_near(
      thread, reg,
      {start_bucket::date_of(entry), start_bucket::version_of(entry), pinrail::generation_of(reg), reg->pool});
}

// Returns the epoch of the last use: the later one of the registration's and its entry's. May miss an entry that is
// being moved.
inline uint64_t last_use(const pinrail_start_table_t* table, const pinrail_registration_t* reg, uint64_t now) {
  const Entry* entry = table == nullptr ? nullptr : entry_of(*table, reg);
  const uint64_t known = pinrail::last_use(reg);
  if (entry == nullptr) return known;
  const uint64_t dated = start_bucket::last_use(start_bucket::date_of(entry), now);
  return dated > known ? dated : known;
}

}  // namespace pinrail::start_table

#endif
