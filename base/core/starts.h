// SPDX-License-Identifier: BSD-3-Clause
// starts.h - which registration starts at this address? The readers' side of a hash table that an index offers: most
// hits ask for the very start of a buffer, and find in one entry of 32 bytes all that they need, the registration's own
// line left alone. The two lines where it may stand are fetched at the same time.
//
// The table may say "not here" of anything; then the index is asked. So readers need no locks.
//
// Owns     nothing. The index owns the table (pinrail_starts_t in component.h) and changes it while others read.
// Threads  all functions at any time.
//
// S1  An entry names a registration only while that is in the index.
// S2  Only registrations that are counted per thread are in, so a count that met a later life of one does no harm.
// S3  An entry's version is odd while it is free or being filled; who reads one even version before and after the rest
//     has read what belongs together.
// S4  An entry's epoch says: a find looked at the registration in it, and found it indexed, unsealed and used in that
//     very epoch. All who seal or kill move the epoch on, after the state word and before they sum (E1 of epoch.h). So
//     who counts it, and then sees entry and epoch unmoved, need not look at the registration itself: whoever made it
//     untakeable since has not summed yet, and will see the count.
#ifndef PINRAIL_BASE_CORE_STARTS_H
#define PINRAIL_BASE_CORE_STARTS_H

#include "base/core/references.h"

namespace pinrail::starts {

using Entry = pinrail_start_t;

constexpr unsigned kEntries = 2;        // of a line
constexpr uint64_t kVersions = 0xffff;  // of a stamp; the epoch above
constexpr unsigned kNameShift = 16;     // in a name: the registration above, rights and traits below
constexpr uint64_t kAccess = uint64_t{PINRAIL_RIGHTS_MASK} | uint64_t{PINRAIL_TRAITS_MASK};
constexpr unsigned kLengthShift = 36;  // in a life: the length above, the generation below
constexpr unsigned kPageShift = 12;    // of lengths: in pages. A part of a page more is left to the index
constexpr uint64_t kMostLength = uint64_t{1} << (64 - kLengthShift + kPageShift);  // less than that
constexpr uint64_t kMostAddress = (uint64_t{1} << (64 - kNameShift)) - 1;          // of a registration
static_assert(kAccess < sizeof(pinrail_registration_t) << kNameShift, "a line each: there is room below");
static_assert(epoch::kStep == kVersions + 1 && state::kGenerations >> kLengthShift == 0, "they share words");

inline pinrail_registration_t* named_by(uint64_t name) {
  constexpr uint64_t kBelow = (uint64_t{sizeof(pinrail_registration_t)} << kNameShift) - 1;
  const uintptr_t address = (name & ~kBelow) >> kNameShift;
  return reinterpret_cast<pinrail_registration_t*>(address);  // NOLINT(performance-no-int-to-ptr)
}
constexpr uint64_t length_of(uint64_t life) { return life >> kLengthShift << kPageShift; }
constexpr uint64_t generation_of(uint64_t life) { return (life << state::kGenerationShift) & state::kGenerationMask; }

// acquire: pairs with the index's release stores.
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// Two rounds: after one, buffers in equal distances still meet in some lines and leave others empty.
inline uint64_t hash_of(uintptr_t base) {
  uint64_t hash = base * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
  return hash;
}
// Two places between 0 and 2^32 for two homes.
constexpr uint64_t first_place(uint64_t hash) { return hash >> 32; }
constexpr uint64_t second_place(uint64_t hash) { return hash & 0xffffffff; }

// Lines are numbered in the order of places, so that a table grows from its end, line by line: places from `grown` on
// have a home among `more` lines, the others among `count`.
// relaxed: whatever a reader makes of them, it stays within the memory that is there, and overlooks at worst.
inline size_t line_of(const pinrail_starts_t& table, uint64_t place) {
  const uint64_t few = __atomic_load_n(&table.count, __ATOMIC_RELAXED);
  const uint64_t more = __atomic_load_n(&table.more, __ATOMIC_RELAXED);
  return place * (place >= __atomic_load_n(&table.grown, __ATOMIC_RELAXED) ? more : few) >> 32;
}

// The entry of two lines that has the base; if none has, any. Which one it is cannot be predicted, and a wrong guess
// would cost as much as all the rest: so both lines are fetched, at the same time, and nothing branches.
__attribute__((always_inline)) inline Entry* entry_in(Entry* first, Entry* second, uintptr_t base) {
  Entry* entry = first;
  const auto look = [&](Entry* other) { entry = load(&other->base) == base ? other : entry; };
  look(first + 1);
  look(second);
  look(second + 1);
  return entry;
}

// The entry that has the base, if the table has one; else any.
__attribute__((always_inline)) inline Entry* find(const pinrail_starts_t& table, uintptr_t base) {
  const uint64_t hash = hash_of(base);
  const uint64_t count = __atomic_load_n(&table.count, __ATOMIC_RELAXED);  // relaxed: see line_of()
  size_t first = first_place(hash) * count >> 32;
  size_t second = second_place(hash) * count >> 32;
  if (__builtin_expect(static_cast<long>(count != __atomic_load_n(&table.more, __ATOMIC_RELAXED)), 0) != 0) {
    first = line_of(table, first_place(hash));
    second = line_of(table, second_place(hash));
  }
  return entry_in(table.entries + kEntries * first, table.entries + kEntries * second, base);
}

// Whether it has all rights that are asked for, and of the traits these and no others. Nothing else may be asked for.
inline bool allows(uint64_t name, uint32_t access) {
  return ((static_cast<uint32_t>(name) ^ access) & (access | PINRAIL_TRAITS_MASK)) == 0;
}

// What an entry said when it was read.
struct Found {
  Entry* entry;
  uint64_t stamp;
  pinrail_registration_t* reg;
  uint64_t generation;
};

// Reads the entry of what starts at base, is `offset` longer than length or more, and has the access; false if the
// table knows of none. It may be free or being filled (S3).
__attribute__((always_inline)) inline bool look_up(const pinrail_starts_t& table, uintptr_t base, size_t offset,
                                                   size_t length, uint32_t access, Found* found_out) {
  Entry* entry = find(table, base);
  const uint64_t stamp = load(&entry->stamp);
  const uint64_t name = load(&entry->name);
  const uint64_t life = load(&entry->life);
  if (load(&entry->base) != base) return false;
  // Neither a length of 0 nor one that wraps is below what is there: that is a page at least.
  if (length - 1 >= length_of(life) - offset || !allows(name, access)) return false;
  *found_out = {entry, stamp, named_by(name), generation_of(life)};
  return true;
}

// The epoch has moved on since somebody looked at what the entry names and the caller has counted. So it is looked at,
// and this is written down for the next ones, unless the entry has become another one's.
inline bool confirm(const pinrail_thread_t* thread, const Found& found, const void* pool) {
  const uint64_t epoch = epoch::load(thread->epoch);  // before the state word
  const uint64_t word = state::load(found.reg);
  const bool taken =
      (word & (state::kIndexed | state::kSealed | state::kGenerationMask)) == (state::kIndexed | found.generation);
  uint64_t now = load(&found.entry->stamp);
  if (!taken || ((now ^ found.stamp) & kVersions) != 0) {
    references::undo(thread, found.reg);
    return false;
  }
  touch(found.reg, epoch);
  // release: who trusts the epoch finds the registration used. Fails only if it is another's, or another was faster.
  __atomic_compare_exchange_n(&found.entry->stamp, &now, epoch | (found.stamp & kVersions), false, __ATOMIC_RELEASE,
                              __ATOMIC_RELAXED);
  references::note(thread, found.reg, epoch, found.generation, pool);
  return true;
}

// A handle of what look_up() finds for these arguments, with a reference. pool: of the C face, for the release; NULL
// if it shall ask the pool's component then.
inline bool take(const pinrail_thread_t* thread, const pinrail_starts_t& table, uintptr_t base, size_t offset,
                 size_t length, uint32_t access, const void* pool, pinrail_handle_t* handle_out) {
  Found found;
  if (thread->cells == nullptr || !look_up(table, base, offset, length, access, &found)) return false;
  if ((found.stamp & 1) != 0 || !references::count(thread, found.reg, 1) || !confirm(thread, found, pool)) return false;
  *handle_out = {found.reg, found.generation};
  return true;
}

// The same without a look at the registration (S4): false, too, if the epoch has moved on since the last one.
__attribute__((always_inline)) inline bool take_unstirred(const pinrail_thread_t* thread, const pinrail_starts_t& table,
                                                          uintptr_t base, size_t offset, size_t length, uint32_t access,
                                                          const void* pool, pinrail_handle_t* handle_out) {
  Found found;
  if (thread->cells == nullptr || !look_up(table, base, offset, length, access, &found)) return false;
  const uint64_t* now = thread->epoch;
  const uint64_t epoch = epoch::load(now);
  if (((found.stamp ^ epoch) & ~(kVersions - 1)) != 0) return false;  // another epoch, or an odd version
  uint64_t* near = references::near_cell(thread, found.reg);
  if (!references::count_first(near, found.reg)) return false;
  if (load(&found.entry->stamp) != found.stamp || epoch::load(now) != epoch) {
    references::undo(thread, found.reg);
    return false;
  }
  references::note_in(near, epoch, found.generation, pool);
  *handle_out = {found.reg, found.generation};
  return true;
}

}  // namespace pinrail::starts

#endif
