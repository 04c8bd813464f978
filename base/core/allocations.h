// SPDX-License-Identifier: BSD-3-Clause
// allocations.h - which registration is of this very allocation of GPU memory? The readers' side of a hash table that a
// pool keeps: a hit compares what names the allocation with one entry, and leaves the registration alone. The two lines
// where it may stand, with two entries each, are fetched at the same time; owners are few and stay at hand.
//
// What an allocation alone has is compared in full: whose it is, and the life of its validity slot, or, where it has no
// slot, its buffer id. The rest follows from that, and is compared by a sum of 32 bits: so a block that somebody has
// spoilt is not taken for another either.
//
// The table may say "not here" of anything; then the pool is asked. So readers need no locks.
//
// Owns     nothing. The pool owns table and owners (component.h) and changes them while others read.
// Threads  all functions at any time.
//
// allocations/A1  An entry names a registration only while that is indexed and not sealed. Who kills or seals one takes
//     its entry out first, and sums then, with a membarrier in between (references.h). So who counts what an entry
//     names, and then finds it there as it was, has counted what each later sum sees; and if it was out and in again
//     meanwhile, then nobody killed it.
// allocations/A2  The version in an entry's tag is odd while the entry is changed. Who finds one tag, and one life,
//     before he reads the rest and after it, has read what belongs together: a life is one registration's, and that has
//     one name.
// allocations/A3  Only registrations that are counted per thread are in, so a count that met a later life of one does
//     no harm.
// allocations/A4  As long as an entry is in, what its owner says stands still, and his words are mapped. So these are
//     looked at when the registration is held.
// allocations/A5  Notes (references/C4) hang on one line of the process, that of GPU memory: after the entry of a dead
//     one is gone its version moves on, and a release that was noted sees it.
#ifndef PINRAIL_BASE_CORE_ALLOCATIONS_H
#define PINRAIL_BASE_CORE_ALLOCATIONS_H

#include "base/core/better.h"
#include "base/core/dates.h"
#include "base/core/figure.h"
#include "base/core/lives.h"
#include "base/core/references.h"
#include "base/core/registration_arena.h"

namespace pinrail::allocations {

using Entry = pinrail_allocation_t;
constexpr size_t kEntries = 2;  // of a line
static_assert(kEntries * sizeof(Entry) == 64, "one line of memory");

// acquire: pairs with the pool's release stores (exact_allocations.h).
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// A tag: the owner's number above, then the version, the sum below.
constexpr unsigned kOwnerAt = 48, kVersionAt = 32;
constexpr uint64_t kNobody = 0;  // the number of whom no block can name
constexpr uint64_t kMostOwners = 0xffff;
constexpr bool is_changing(uint64_t tag) { return (tag >> kVersionAt & 1) != 0; }
constexpr uint64_t owner_of(uint64_t tag) { return tag >> kOwnerAt; }
constexpr uint32_t sum_of(uint64_t tag) { return static_cast<uint32_t>(tag); }

// The life of a slot, as a key: the slot below, what its word counts above.
constexpr unsigned kSlotBits = 24;
constexpr uint64_t kImporters = 0xffff;  // of a slot's word: not compared
constexpr unsigned kWordShift = 17;      // nor its bit "dead"; a word that has it is no living one's
constexpr bool is_keyed(uint64_t slot, uint64_t word) {
  return (slot >> kSlotBits | word >> (64 - kSlotBits + kWordShift)) == 0;
}
constexpr uint64_t key_of_slot(uint64_t slot, uint64_t word) { return word >> kWordShift << kSlotBits | slot; }
constexpr uint64_t slot_of(uint64_t key) { return key & ((uint64_t{1} << kSlotBits) - 1); }

// Keys are entered in a disguise that each owner has of his own, for all count their slots and buffers alike.
inline uint64_t disguise(uint64_t pid, uint64_t start, uint64_t segment) {
  return ((start ^ segment) + pid) * 0x9E3779B97F4A7C15u;
}

inline uint32_t sum_over(uint64_t base, uint64_t length, uint64_t id) {
  const uint64_t all = base ^ (length << 23 | length >> 41) ^ (id << 47 | id >> 17);
  return static_cast<uint32_t>(all * 0xD6E8FEB86659FD93u >> 32);
}

// Of the hints where an owner's words lie: the upper bits are those that all others have gone into.
constexpr size_t hint_of(uint64_t disguise) { return disguise >> 52; }
static_assert(PINRAIL_WORDS_HINTS == 1 << (64 - 52), "one for each");

// The word of the slot is the last thing that a hit looks at, and its address stands behind two others. So it is
// fetched while these are: wherever the hint says, for a wrong one costs no more than that.
inline void fetch_word(const pinrail_allocations_t& table, uint64_t disguise, uint64_t slot) {
  const uint64_t words = __atomic_load_n(&table.words[hint_of(disguise)], __ATOMIC_RELAXED);
  __builtin_prefetch(reinterpret_cast<const void*>(words + slot * sizeof(uint64_t)));  // NOLINT: no pointer, a hint
}

// Two rounds: after one, keys in a row, which is how ids and slots are counted, leave some lines empty and meet in
// others.
struct Hash {
  uint64_t first, second;  // from bit 6 on, a line's
};
inline Hash hash_of(uint64_t key) {
  uint64_t hash = key * 0xD6E8FEB86659FD93u;
  hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
  return {hash >> 32, hash >> 8};
}

// mask: of the table, loaded before the entries; those of a larger table do as well.
inline Entry* home(Entry* entries, uint64_t mask, uint64_t hash) {
  return reinterpret_cast<Entry*>(reinterpret_cast<char*>(entries) + (hash & mask));
}

// The entry of that key; if there is none, any. Which one it is cannot be predicted, and a wrong guess would cost as
// much as all the rest: so both lines are fetched, at the same time, and nothing branches.
__attribute__((always_inline)) inline Entry* find(const pinrail_allocations_t& table, uint64_t key) {
  const uint64_t mask = load(&table.mask);
  Entry* const entries = __atomic_load_n(&table.entries, __ATOMIC_ACQUIRE);
  const Hash hash = hash_of(key);
  Entry* const first = home(entries, mask, hash.first);
  Entry* const second = home(entries, mask, hash.second);
  Entry* entry = first;
  const auto look = [&](Entry* other) { entry = better(entry, other, &other->key, key); };
  look(first + 1);
  look(second);
  look(second + 1);
  return entry;
}

// By what the entries of a table are known.
enum class By : uint8_t {
  id,    // the buffer id
  slot,  // its slot's life, where the allocation has a slot; else the buffer id
};

// What names an allocation, in the words of a block: whoever has one asks with that.
struct Asked {
  uint64_t pid, start, segment;
  uint64_t base, length, buffer_id;
  uint64_t slot, slot_word;  // By::slot only
};

// What an entry said when it was read.
struct Found {
  Entry* entry;
  uint64_t key;
  uint64_t life;
  uint64_t tag;
  const pinrail_owner_t* owner;
};

// Reads the entry of what was asked for; false if the table knows of none, or just changes.
template <By kBy, typename Asking>
__attribute__((always_inline)) inline bool look_up(const pinrail_allocations_t& table, const Asking& asked,
                                                   Found* found_out) {
  const uint64_t owners = disguise(asked.pid, asked.start, asked.segment);
  uint64_t key = asked.buffer_id;
  if (kBy == By::slot && asked.segment != 0) {
    if (!is_keyed(asked.slot, asked.slot_word)) return false;
    key = key_of_slot(asked.slot, asked.slot_word);
    fetch_word(table, owners, asked.slot);
  }
  const uint64_t disguised = key ^ owners;
  Entry* const entry = find(table, disguised);
  const uint64_t tag = load(&entry->tag);
  const uint64_t life = load(&entry->life);
  if (load(&entry->key) != disguised || is_changing(tag)) return false;
  if (sum_of(tag) != sum_over(asked.base, asked.length, asked.buffer_id)) return false;
  // Of some time; what he says stands still as long as the entry is in (allocations/A4).
  const pinrail_owner_t* const owner = __atomic_load_n(&table.owners, __ATOMIC_ACQUIRE) + owner_of(tag);
  if (load(&owner->pid) != asked.pid || load(&owner->start) != asked.start) return false;
  if (load(&owner->segment) != asked.segment) return false;
  *found_out = {entry, key, life, tag, owner};
  return true;
}

// allocations/A1 and allocations/A2, when it is counted and all else was read.
inline bool is_there_still(const Found& found) {
  return load(&found.entry->tag) == found.tag && load(&found.entry->life) == found.life;
}

// Whether the memory that the caller holds a registration of lives, as far as its slot knows: one load.
inline bool is_alive(const Found& found, uint64_t word) {
  const uint64_t* const words = __atomic_load_n(&found.owner->words, __ATOMIC_ACQUIRE);
  return words == nullptr || (load(&words[slot_of(found.key)]) & ~kImporters) == word;
}

// What a release of it shall know (references/C4).
inline const void* noted_of(const Entry* entry) { return reinterpret_cast<const char*>(entry) + 1; }
// What was noted so; NULL if something else was.
inline Entry* entry_of(const void* noted) {
  const auto word = reinterpret_cast<uintptr_t>(noted);
  return (word & 1) == 0 ? nullptr : reinterpret_cast<Entry*>(word - 1);  // NOLINT(performance-no-int-to-ptr)
}

// allocations/A5. release: behind the state word and the entry.
inline void stir(pinrail_start_line_t* line) { __atomic_fetch_add(&line->version, 2, __ATOMIC_RELEASE); }

// relaxed: only an order hangs on it.
inline void date(pinrail_thread_t* thread, Entry* entry) {
  __atomic_store_n(&entry->last_use, dates::use(thread, entry), __ATOMIC_RELAXED);
}

// How a hit is counted. first: in few steps, and not at all if the near cell counts anything. any: in whatever cell.
enum class Cell : uint8_t { first, any };

// The calling thread, and the pool that it has to do with.
struct Asker {
  pinrail_thread_t* thread;
  const pinrail_mpool_t* pool;
};

// no: the table does not know it, or the thread has no cell for it. in_vain: it was counted, and is not what was asked
// for any more; the caller takes that back by references::undo(), and that is not here so that his hit calls nothing.
enum class Taken : uint8_t { yes, no, in_vain };

// A reference to what was asked for, if is_good(found, registration) says so of what is held by then. handle_out: of
// what was counted, but for `no`.
template <By kBy, Cell kCell, typename Asking, typename Good>
__attribute__((always_inline)) inline Taken try_take(Asker asker, const pinrail_allocations_t& table,
                                                     const Asking& asked, Good&& is_good,
                                                     pinrail_handle_t* handle_out) {
  Found found;
  pinrail_thread_t* const thread = asker.thread;
  if (thread->index >= __atomic_load_n(&table.hit_threads, __ATOMIC_ACQUIRE)) return Taken::no;
  if (!look_up<kBy>(table, asked, &found)) return Taken::no;
  pinrail_registration_t* const reg = arena::numbered(table.chunks, lives::number_of(found.life));
  const uint64_t generation = lives::generation_of(found.life);
  uint64_t* const near = references::near_cell(thread, reg);
  if (!(kCell == Cell::first ? references::count_first(near, reg) : references::count(thread, reg, 1)))
    return Taken::no;
  *handle_out = {reg, generation};
  const uint32_t version = start_line::load(&thread->gpu_line->version);
  if (!is_there_still(found) || !is_good(found, reg)) return Taken::in_vain;
  const bool is_near = kCell == Cell::first || references::names(references::look(near), reg);
  if (is_near) {
    references::note_in(near, {&thread->gpu_line->dates[0], version, generation, noted_of(found.entry)});
    references::note_pool(near, asker.pool);
  }
  figure::raise(table.hits + size_t{16} * thread->index);
  date(thread, found.entry);
  return Taken::yes;
}

// The same for blocks: if the memory lives, as far as its slot knows.
template <Cell kCell, typename Asking>
__attribute__((always_inline)) inline Taken try_take_block(Asker asker, const pinrail_allocations_t& table,
                                                           const Asking& block, pinrail_handle_t* handle_out) {
  const auto lives = [&](const Found& found, const pinrail_registration_t*) {
    return is_alive(found, block.slot_word);
  };
  return try_take<By::slot, kCell>(asker, table, block, lives, handle_out);
}

// Outputs on success only.
inline bool settle(const pinrail_thread_t* thread, Taken taken, pinrail_handle_t handle, pinrail_handle_t* handle_out) {
  if (taken == Taken::in_vain) references::undo(thread, handle.reg);
  if (taken == Taken::yes) *handle_out = handle;
  return taken == Taken::yes;
}
template <Cell kCell, typename Asking>
bool take_block(Asker asker, const pinrail_allocations_t& table, const Asking& block, pinrail_handle_t* handle_out) {
  pinrail_handle_t handle;
  return settle(asker.thread, try_take_block<kCell>(asker, table, block, &handle), handle, handle_out);
}

// The calling thread has just released the registration, and the table is still there, for destroying the pool excludes
// calls with its handles. If the entry is another one's by now, the registration itself is dated.
inline void date_release(pinrail_thread_t* thread, Entry* entry, pinrail_registration_t* reg) {
  if (dates::is_last(thread, entry)) return;
  if (lives::number_of(load(&entry->life)) == arena::number_of(reg)) {
    date(thread, entry);
  } else {
    touch(reg, dates::use(thread, nullptr));
  }
}

}  // namespace pinrail::allocations

#endif
