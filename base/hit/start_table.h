// SPDX-License-Identifier: BSD-3-Clause
// start_table.h - which registration starts at this address? The readers' side of a hash table that an index offers:
// most hits ask for the very start of a buffer, and find all that they need in one bucket of memory (start_bucket.h),
// the registration's own left alone. The two buckets where it may stand are fetched at the same time.
//
// The table may say "not here" of anything; then the index is asked. So readers need no locks.
//
// Owns     nothing. The index owns the table (pinrail_start_table_t in component.h) and changes it while others read.
// Threads  all functions at any time.
//
// start_table/S1  An entry names a registration only while that is in the index and not claimed. Who claims or kills
// one
//     changes its state word first, then has its entry taken out, and then sums, with a membarrier in between
//     (references.h). So who counts what an entry names, and then sees the bucket's version where it was, has counted
//     what each later sum sees; he need not consider at the registration itself.
// start_table/S2  Only registrations that are counted per thread are in, so a count that met a later incarnation of one
// does no
//     harm.
#ifndef PINRAIL_BASE_HIT_START_TABLE_H
#define PINRAIL_BASE_HIT_START_TABLE_H

#include "base/core/select_if_equal.h"
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

// A start: its page, the low half of whose number is an entry's page; the rest stands in the extent.
constexpr unsigned kPageShift = 12;
constexpr unsigned kHighPageShift = kPageShift + 32;
// An extent: the rest of the start above, then the length, a bit that all have but those of free entries, the access
// below.
constexpr unsigned kStartAt = 28;
constexpr uintptr_t kMaxStart = (uintptr_t{1} << (kHighPageShift + 32 - kStartAt)) - 1;
constexpr unsigned kLengthAt = 7;  // in pages. A part of a page more is left to the index
constexpr uint64_t kMaxLength = uint64_t{1} << (kStartAt - kLengthAt + kPageShift);  // less than that
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
  return uint64_t{extent << (32 - kStartAt) >> (32 - kStartAt + kLengthAt)} << kPageShift;
}

// Two rounds: after one, buffers in equal distances still meet in some buckets and leave others empty.
inline uint64_t hash_of(uintptr_t base) {
  uint64_t hash = base * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
  return hash;
}
// Two places between 0 and 2^32 for two buckets.
constexpr uint64_t first_place(uint64_t hash) { return hash >> 32; }
constexpr uint64_t second_place(uint64_t hash) { return hash & 0xffffffff; }

// Lines are numbered in the order of places, so that a table grows from its end, bucket by bucket: places from `grown`
// on have a bucket among `more` buckets, the others among `few`.
struct Size {
  uint64_t few, more, grown;
  size_t bucket_of(uint64_t place) const { return place * (place >= grown ? more : few) >> 32; }
};
// relaxed: whatever a reader makes of them, it stays within the memory that is there, and overlooks at worst.
inline Size size_of(const pinrail_start_table_t& table) {
  return {__atomic_load_n(&table.count, __ATOMIC_RELAXED), __atomic_load_n(&table.more, __ATOMIC_RELAXED),
          __atomic_load_n(&table.grown, __ATOMIC_RELAXED)};
}

// The entry of two buckets that is of the page; if none is, any. Which one it is cannot be predicted, and a wrong guess
// would cost as much as all the rest: so both buckets are fetched, at the same time, and nothing branches.
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

// The entry of what starts at base, if the table has one; else any.
__attribute__((always_inline)) inline const Entry* find(const pinrail_start_table_t& table, uintptr_t base) {
  const uint64_t hash = hash_of(base);
  const uint64_t count = __atomic_load_n(&table.count, __ATOMIC_RELAXED);  // relaxed: see size_of()
  size_t first = first_place(hash) * count >> 32;
  size_t second = second_place(hash) * count >> 32;
  if (__builtin_expect(static_cast<long>(count != __atomic_load_n(&table.more, __ATOMIC_RELAXED)), 0) != 0) {
    first = size_of(table).bucket_of(first_place(hash));
    second = size_of(table).bucket_of(second_place(hash));
  }
  Bucket* const buckets = table.buckets;
  return entry_in(buckets + first, buckets + second, page_of(base));
}

// Whether it is the upper part of that start, has all rights that are asked for, and of the traits these and no others.
// Nothing else may be asked for. Of free entries false.
inline bool answers(uint32_t extent, uintptr_t base, uint32_t access) {
  constexpr uint64_t kAll = ~uint64_t{kBelowStart} | kTraits;  // what must be equal
  const uint64_t asked = access_of(access) | kUsed;
  return ((extent ^ (asked | base >> kHighPageShift << kStartAt)) & (asked | kAll)) == 0;
}

// What an entry said when it was read.
struct Found {
  const Entry* entry;
  pinrail_registration_t* reg;
  uint64_t generation;
  uint32_t version;
};

// Reads the entry of what starts at base, a multiple of a page, is `offset` longer than length or more, and has the
// access; false if the table knows of none, or just changes.
__attribute__((always_inline)) inline bool look_up(const pinrail_start_table_t& table, uintptr_t base, size_t offset,
                                                   size_t length, uint32_t access, Found* found_out) {
  const Entry* entry = find(table, base);
  const uint32_t version = start_bucket::version_of(entry);
  const Entry page = load(entry);
  const uint32_t extent = load(start_bucket::extent_of(entry));
  const uint64_t incarnation = load(start_bucket::incarnation_of(entry));
  if (page != page_of(base) || !answers(extent, base, access) || start_bucket::is_changing(version)) return false;
  // What is there is longer than the offset. So neither a length of 0 nor one that wraps is below it.
  if (length - 1 >= length_of(extent) - offset) return false;
  *found_out = {entry, arena::numbered(table.chunks, number_of(incarnation)), generation_of(incarnation), version};
  return true;
}

// Whether what the caller has counted is what the entry named; if so, it is used now (start_table/S1).
__attribute__((always_inline)) inline bool is_taken(const pinrail_thread_t* thread, const Found& found) {
  if (start_bucket::version_of(found.entry) != found.version) {
    references::roll_back(thread, found.reg);
    return false;
  }
  start_bucket::use(start_bucket::date_of(found.entry), epoch::load(thread->epoch));
  return true;
}

inline note::Note note_of(const Found& found, const void* pool) {
  return {start_bucket::date_of(found.entry), found.version, found.generation, pool};
}

// A handle of what look_up() finds for these arguments, with a reference. pool: of the C face, for the release; NULL
// if it shall ask the pool's component then.
inline bool take(const pinrail_thread_t* thread, const pinrail_start_table_t& table, uintptr_t base, size_t offset,
                 size_t length, uint32_t access, const void* pool, pinrail_handle_t* handle_out) {
  Found found;
  if (!look_up(table, base, offset, length, access, &found)) return false;
  if (!references::count(thread, found.reg, 1) || !is_taken(thread, found)) return false;
  note::write_if_near(thread, found.reg, note_of(found, pool));
  *handle_out = {found.reg, found.generation};
  return true;
}

// Of what was found, the same in few steps: false, too, if the thread's near reference slot counts anything.
__attribute__((always_inline)) inline bool take_first(const pinrail_thread_t* thread, const Found& found,
                                                      const void* pool, pinrail_handle_t* handle_out) {
  uint64_t* near = references::near_ref_slot(thread, found.reg);
  if (!references::count_first(near, found.reg) || !is_taken(thread, found)) return false;
  note::write(near, note_of(found, pool));
  *handle_out = {found.reg, found.generation};
  return true;
}

// The registration's own entry; NULL if it has none.
inline Entry* entry_of(const pinrail_start_table_t& table, const pinrail_registration_t* reg) {
  const uint64_t hash = hash_of(span_of(reg).base);
  const uint64_t number = arena::number_of(reg);
  for (const uint64_t place : {first_place(hash), second_place(hash)}) {
    for (Entry& entry : table.buckets[size_of(table).bucket_of(place)].pages) {
      if (load(start_bucket::extent_of(&entry)) != 0 && number_of(load(start_bucket::incarnation_of(&entry))) == number)
        return &entry;
    }
  }
  return nullptr;
}

// As note_again(), of the entry that was just made for what the thread holds; nobody else changes the table meanwhile.
inline void note_entry(const pinrail_thread_t* thread, const Entry* entry, const pinrail_registration_t* reg) {
  note::write_if_near(
      thread, reg,
      {start_bucket::date_of(entry), start_bucket::version_of(entry), pinrail::generation_of(reg), reg->pool});
}

// For the next references that the thread takes in the same near reference slot: what it holds there is noted as its
// entry stands now, if it has one.
inline void note_again(const pinrail_thread_t* thread, const pinrail_start_table_t& table, pinrail_handle_t handle,
                       const void* pool) {
  if (!references::has_some(references::load_slot(references::near_ref_slot(thread, handle.reg)), handle.reg)) return;
  const Entry* entry = entry_of(table, handle.reg);
  if (entry == nullptr) return;
  const uint32_t version = start_bucket::version_of(entry);
  const uint64_t incarnation = load(start_bucket::incarnation_of(entry));
  const bool is_own = load(start_bucket::extent_of(entry)) != 0 && generation_of(incarnation) == handle.generation &&
                      number_of(incarnation) == arena::number_of(handle.reg);
  if (!is_own || start_bucket::is_changing(version) || start_bucket::version_of(entry) != version) return;
  note::write_if_near(thread, handle.reg, {start_bucket::date_of(entry), version, handle.generation, pool});
}

// When it was used last, as the registration and its entry know it, if it has one. An entry that moves meanwhile may be
// overlooked.
inline uint64_t last_use(const pinrail_start_table_t* table, const pinrail_registration_t* reg, uint64_t now) {
  const Entry* entry = table == nullptr ? nullptr : entry_of(*table, reg);
  const uint64_t known = pinrail::last_use(reg);
  if (entry == nullptr) return known;
  const uint64_t dated = start_bucket::last_use(start_bucket::date_of(entry), now);
  return dated > known ? dated : known;
}

}  // namespace pinrail::start_table

#endif
