// SPDX-License-Identifier: BSD-3-Clause
// allocations.h - which registration is of this very allocation of GPU memory? The readers' side of a hash table that a
// pool keeps: a hit compares all that names the allocation with one entry, a line, and leaves the registration alone.
// The two lines where it may stand are fetched at the same time; what is known of its owner is short and stays at hand.
//
// The table may say "not here" of anything; then the pool is asked. So readers need no locks.
//
// Owns     nothing. The pool owns table and owners (component.h) and changes them while others read.
// Threads  all functions at any time.
//
// A1  An entry names a registration only while that is indexed and not sealed. Who kills or seals one changes the
//     entry's version first, and sums then, with a membarrier in between (references.h): who counts it, and finds the
//     version as it was, has counted what each later sum sees.
// A2  A version is odd while its entry is free or being filled; who reads one even version before and after the rest
//     has read what belongs together.
// A3  Only registrations that are counted per thread are in, so a count that met a later life of one does no harm.
// A4  As long as an entry is in, what its owner says stands still, and his words are mapped. So these are looked at
//     when the registration is held.
// A5  Notes (C4 of references.h) hang on one line of the process, that of GPU memory: after the entry of a dead one is
//     gone its version moves on, and a release that was noted sees it.
#ifndef PINRAIL_BASE_CORE_ALLOCATIONS_H
#define PINRAIL_BASE_CORE_ALLOCATIONS_H

#include "base/core/dates.h"
#include "base/core/references.h"

namespace pinrail::allocations {

using Entry = pinrail_allocation_t;
static_assert(sizeof(Entry) == 64, "one line");

constexpr uint64_t kVersions = 0x3fffff;  // of a name; the registration above, whose address ends with zeros
constexpr unsigned kNameShift = 16;
constexpr uint64_t kMostAddress = (uint64_t{1} << (64 - kNameShift)) - 1;  // of a registration
constexpr unsigned kSlotBelow = state::kGenerationShift;  // of a life: bits of the slot below its generation,
constexpr unsigned kSlotAbove = state::kReferenceShift;   // and where those above begin
constexpr uint64_t kMostSlots = uint64_t{1} << (64 - kSlotAbove + kSlotBelow);
constexpr uint64_t kImporters = 0xffff;  // of a slot's word: not compared

static_assert(kVersions >> kNameShift == sizeof(pinrail_registration_t) - 1, "its lines have room for them");
inline pinrail_registration_t* named_by(uint64_t name) {
  const uintptr_t address = (name & ~kVersions) >> kNameShift;
  return reinterpret_cast<pinrail_registration_t*>(address);  // NOLINT(performance-no-int-to-ptr)
}
constexpr uint64_t life_of(uint64_t generation, uint64_t slot) {
  return slot >> kSlotBelow << kSlotAbove | generation | (slot & ((1 << kSlotBelow) - 1));
}
constexpr uint64_t generation_of(uint64_t life) { return life & state::kGenerationMask; }
constexpr uint64_t slot_of(uint64_t life) {
  return life >> kSlotAbove << kSlotBelow | (life & ((1 << kSlotBelow) - 1));
}

// acquire: pairs with the pool's release stores.
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// What names an allocation, in the words of a block: whoever has one asks with that.
struct Asked {
  uint32_t pid;
  uint64_t start, segment;
  uint64_t base, length, buffer_id;
  uint64_t slot_word;
};

// What an entry keeps of the base: with the owner beside it, as good as that; and by itself hardly ever another's.
inline uint64_t place_of(uint64_t pid, uint64_t start, uint64_t segment, uint64_t base) {
  return ((start ^ segment) + pid) ^ base;
}
// Of a product, where all bits of the place are in. Its halves by themselves are not enough for a first home: below the
// upper one's bits neighbours stay neighbours.
struct Hash {
  uint64_t first, second;
};
inline Hash hash_of(uint64_t place) {
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(place) * 0xD6E8FEB86659FD93u;
  const auto lower = static_cast<uint64_t>(product);
  return {static_cast<uint64_t>(product >> 64) ^ lower, lower >> 32};
}

// mask: of the table, loaded before the entries; those of a larger table do as well.
inline Entry* home(Entry* entries, uint64_t mask, uint64_t hash) {
  return reinterpret_cast<Entry*>(reinterpret_cast<char*>(entries) + (hash & mask));
}

// The entry of that place; if there is none, any. Which of the two cannot be predicted, and a wrong guess would cost as
// much as all the rest: so both lines are fetched, at the same time, and nothing branches.
__attribute__((always_inline)) inline Entry* find(const pinrail_allocations_t& table, uint64_t place) {
  const uint64_t mask = load(&table.mask);
  Entry* const entries = __atomic_load_n(&table.entries, __ATOMIC_ACQUIRE);
  const Hash hash = hash_of(place);
  Entry* const first = home(entries, mask, hash.first);
  Entry* const second = home(entries, mask, hash.second);
  __builtin_prefetch(second);
  const bool is_first = load(&first->place) == place;
  return __builtin_expect_with_probability(is_first, true, 0.5) != 0 ? first : second;
}

// Who does not know the slot's word takes what the entry says.
enum class Word : uint8_t { asked, any };

// What an entry said when it was read.
struct Found {
  Entry* entry;
  uint64_t name;
  const pinrail_owner_t* owner;
};

// Reads the entry of what was asked for; false if the table knows of none. It may be free or being filled (A2).
template <Word kWord, typename Asking>
__attribute__((always_inline)) inline bool look_up(const pinrail_allocations_t& table, const Asking& asked,
                                                   Found* found_out) {
  const uint64_t place = place_of(asked.pid, asked.start, asked.segment, asked.base);
  Entry* const entry = find(table, place);
  const uint64_t name = load(&entry->name);
  if (load(&entry->place) != place || (name & 1) != 0) return false;
  if (load(&entry->length) != asked.length || load(&entry->id) != asked.buffer_id) return false;
  if (kWord == Word::asked && load(&entry->word) != asked.slot_word) return false;
  // Of some time; what he says stands still as long as the entry is in (A4).
  const pinrail_owner_t* const owner = __atomic_load_n(&entry->owner, __ATOMIC_ACQUIRE);
  if (load(&owner->pid) != asked.pid || load(&owner->start) != asked.start) return false;
  if (load(&owner->segment) != asked.segment) return false;
  *found_out = {entry, name, owner};
  return true;
}

// Whether the memory that the caller holds a registration of lives, as far as its slot knows: one load.
inline bool is_alive(const Found& found, uint64_t life) {
  const uint64_t* const words = __atomic_load_n(&found.owner->words, __ATOMIC_ACQUIRE);
  return words == nullptr || (load(&words[slot_of(life)]) & ~kImporters) == load(&found.entry->word);
}

// What a release of it shall know (C4 of references.h).
inline const void* noted_of(const Entry* entry) { return reinterpret_cast<const char*>(entry) + 1; }
// What was noted so; NULL if something else was.
inline Entry* entry_of(const void* noted) {
  const auto word = reinterpret_cast<uintptr_t>(noted);
  return (word & 1) == 0 ? nullptr : reinterpret_cast<Entry*>(word - 1);  // NOLINT(performance-no-int-to-ptr)
}
// Whose table it is in.
inline const pinrail_mpool_t* pool_of(const Entry* entry) {
  return __atomic_load_n(&entry->owner, __ATOMIC_ACQUIRE)->pool;
}

// A5. release: behind the state word and the entry.
inline void stir(pinrail_start_line_t* line) { __atomic_fetch_add(&line->version, 2, __ATOMIC_RELEASE); }

// relaxed: only an order hangs on it.
inline void date(pinrail_thread_t* thread, Entry* entry) {
  __atomic_store_n(&entry->last_use, dates::use(thread, entry), __ATOMIC_RELAXED);
}

// How a hit is counted. first: in few steps, and not at all if the near cell counts anything. any: in whatever cell.
enum class Cell : uint8_t { first, any };

// A handle of what was asked for, with a reference.
template <Word kWord, Cell kCell, typename Asking>
__attribute__((always_inline)) inline bool take(pinrail_thread_t* thread, const pinrail_allocations_t& table,
                                                const Asking& asked, pinrail_handle_t* handle_out) {
  Found found;
  if (thread->index >= table.hit_threads || load(&table.shut) != 0) return false;
  if (!look_up<kWord>(table, asked, &found)) return false;
  pinrail_registration_t* const reg = named_by(found.name);
  uint64_t* const near = references::near_cell(thread, reg);
  if (!(kCell == Cell::first ? references::count_first(near, reg) : references::count(thread, reg, 1))) return false;
  const uint32_t version = start_line::load(&thread->gpu_line->version);
  const uint64_t life = load(&found.entry->life);
  // A1: the version again, now that it is counted, and all else was read; and the slot, now that it stays mapped.
  if (load(&found.entry->name) != found.name || !is_alive(found, life)) {
    references::undo(thread, reg);
    return false;
  }
  const uint64_t generation = generation_of(life);
  const bool is_near = kCell == Cell::first || references::names(references::look(near), reg);
  if (is_near) references::note_in(near, {&thread->gpu_line->dates[0], version, generation, noted_of(found.entry)});
  uint64_t* const hits = table.hits + size_t{16} * thread->index;
  __atomic_store_n(hits, __atomic_load_n(hits, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);  // relaxed: a figure
  date(thread, found.entry);
  *handle_out = {reg, generation};
  return true;
}

// The calling thread has just released the registration, and the table is still there, for destroying the pool excludes
// calls with its handles. If the entry is another one's by now, the registration itself is dated.
inline void date_release(pinrail_thread_t* thread, Entry* entry, pinrail_registration_t* reg) {
  if (dates::is_last(thread, entry)) return;
  if (named_by(load(&entry->name)) == reg) {
    date(thread, entry);
  } else {
    touch(reg, dates::use(thread, nullptr));
  }
}

}  // namespace pinrail::allocations

#endif
