// SPDX-License-Identifier: BSD-3-Clause
// allocation_table.h - which registration is of this very allocation of GPU memory? The readers' side of a hash table
// that a pool keeps: a hit compares what names the allocation with one entry, and leaves the registration alone. The
// two lines where it may stand, with two entries each, are fetched at the same time; owners are few and stay at hand.
//
// What an allocation alone has is compared in full: whose it is, and the incarnation of its validity slot, or, where it
// has no slot, its buffer id. The rest follows from that, and is compared by a sum of 32 bits: so a block that somebody
// has spoilt is not taken for another either.
//
// The table may say "not here" of anything; then the pool is asked. So readers need no locks.
//
// Owns     nothing. The pool owns table and owners (component.h) and changes them while others read.
// Threads  all functions at any time.
//
// allocation_table/A1  An entry names a registration only while that is indexed and not claimed. Who kills or claims
// one takes
//     its entry out first, and sums then, with a membarrier in between (references.h). So who counts what an entry
//     names, and then finds it there as it was, has counted what each later sum sees; and if it was out and in again
//     meanwhile, then nobody killed it.
// allocation_table/A2  The version in an entry's tag is odd while the entry is changed. Who finds one tag, and one
// incarnation,
//     before he reads the rest and after it, has read what belongs together: an incarnation is one registration's, and
//     that has one name.
// allocation_table/A3  Only registrations that are counted per thread are in, so a count that met a later incarnation
// of one does
//     no harm.
// allocation_table/A4  As long as an entry is in, what its owner says stands still, and his words are mapped. So these
// are
//     looked at when the registration is held.
// allocation_table/A5  Notes (note/N1) hang on one line of the process, that of GPU memory: after the entry of a dead
//     one is gone its version moves on, and a release that was noted sees it.
#ifndef PINRAIL_BASE_HIT_ALLOCATION_TABLE_H
#define PINRAIL_BASE_HIT_ALLOCATION_TABLE_H

#include "base/core/select_if_equal.h"
#include "base/core/stat_counter.h"
#include "base/hit/note.h"
#include "base/lru/timestamps.h"
#include "base/registration/incarnation.h"
#include "base/registration/references.h"
#include "base/registration/registration_arena.h"

namespace pinrail::allocation_table {

using Entry = pinrail_allocation_t;
constexpr size_t kEntries = 2;  // of a line
static_assert(kEntries * sizeof(Entry) == 64, "one line of memory");

// acquire: pairs with the pool's release stores (allocation_index.h).
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// A tag: the owner's number above, then the version, the sum below.
constexpr unsigned kOwnerAt = 48, kVersionAt = 32;
constexpr uint64_t kNobody = 0;  // the number of whom no block can name
constexpr uint64_t kMaxOwners = 0xffff;
constexpr bool is_changing(uint64_t tag) { return (tag >> kVersionAt & 1) != 0; }
constexpr uint64_t owner_of(uint64_t tag) { return tag >> kOwnerAt; }
constexpr uint32_t sum_of(uint64_t tag) { return static_cast<uint32_t>(tag); }

// The incarnation of a slot, as a key: the slot below, what its word counts above.
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
inline void fetch_word(const pinrail_allocation_table_t& table, uint64_t disguise, uint64_t slot) {
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
inline Entry* bucket_of(Entry* entries, uint64_t mask, uint64_t hash) {
  return reinterpret_cast<Entry*>(reinterpret_cast<char*>(entries) + (hash & mask));
}

// The entry of that key; if there is none, any. Which one it is cannot be predicted, and a wrong guess would cost as
// much as all the rest: so both lines are fetched, at the same time, and nothing branches.
__attribute__((always_inline)) inline Entry* find(const pinrail_allocation_table_t& table, uint64_t key) {
  const uint64_t mask = load(&table.mask);
  Entry* const entries = __atomic_load_n(&table.entries, __ATOMIC_ACQUIRE);
  const Hash hash = hash_of(key);
  Entry* const first = bucket_of(entries, mask, hash.first);
  Entry* const second = bucket_of(entries, mask, hash.second);
  Entry* entry = first;
  const auto consider = [&](Entry* other) { entry = select_if_equal(entry, other, &other->key, key); };
  consider(first + 1);
  consider(second);
  consider(second + 1);
  return entry;
}

// By what the entries of a table are known.
enum class By : uint8_t {
  id,    // the buffer id
  slot,  // its slot's incarnation, where the allocation has a slot; else the buffer id
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
  uint64_t incarnation;
  uint64_t tag;
  const pinrail_owner_t* owner;
};

// Reads the entry of what was asked for; false if the table knows of none, or just changes.
template <By kBy, typename Asking>
__attribute__((always_inline)) inline bool look_up(const pinrail_allocation_table_t& table, const Asking& asked,
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
  const uint64_t incarnation = load(&entry->incarnation);
  if (load(&entry->key) != disguised || is_changing(tag)) return false;
  if (sum_of(tag) != sum_over(asked.base, asked.length, asked.buffer_id)) return false;
  // Of some time; what he says stands still as long as the entry is in (allocation_table/A4).
  const pinrail_owner_t* const owner = __atomic_load_n(&table.owners, __ATOMIC_ACQUIRE) + owner_of(tag);
  if (load(&owner->pid) != asked.pid || load(&owner->start) != asked.start) return false;
  if (load(&owner->segment) != asked.segment) return false;
  *found_out = {entry, key, incarnation, tag, owner};
  return true;
}

// allocation_table/A1 and allocation_table/A2, when it is counted and all else was read.
inline bool is_there_still(const Found& found) {
  return load(&found.entry->tag) == found.tag && load(&found.entry->incarnation) == found.incarnation;
}

// Whether the memory that the caller holds a registration of lives, as far as its slot and the mark of its exporter's
// end know, which stands before the words: two loads.
constexpr uint64_t kEnded = uint64_t{1} << 30;  // what the kernel sets: FUTEX_OWNER_DIED
inline bool is_alive(const Found& found, uint64_t word) {
  const uint64_t* const words = __atomic_load_n(&found.owner->words, __ATOMIC_ACQUIRE);
  if (words == nullptr) return true;
  return (((load(&words[slot_of(found.key)]) & ~kImporters) ^ word) | (load(words - 1) & kEnded)) == 0;
}

// What a release of it shall know (note/N1).
inline const void* note_source(const Entry* entry) { return reinterpret_cast<const char*>(entry) + 1; }
// What was noted so; NULL if something else was.
inline Entry* entry_of(const void* noted) {
  const auto word = reinterpret_cast<uintptr_t>(noted);
  return (word & 1) == 0 ? nullptr : reinterpret_cast<Entry*>(word - 1);  // NOLINT(performance-no-int-to-ptr)
}

// allocation_table/A5. release: behind the state word and the entry.
inline void stir(pinrail_start_bucket_t* line) { __atomic_fetch_add(&line->version, 2, __ATOMIC_RELEASE); }

// relaxed: only an order hangs on it.
inline void date(pinrail_thread_t* thread, Entry* entry) {
  __atomic_store_n(&entry->last_use, timestamps::use(thread, entry), __ATOMIC_RELAXED);
}

// How a hit is counted. first: in few steps, and not at all if the near reference slot counts anything. any: in
// whatever reference slot.
enum class SlotChoice : uint8_t { first, any };

// The calling thread, and the pool that it has to do with.
struct Asker {
  pinrail_thread_t* thread;
  const pinrail_mpool_t* pool;
};

// no: the table does not know it, or the thread has no reference slot for it. in_vain: it was counted, and is not what
// was asked for any more; the caller takes that back by references::roll_back(), and that is not here so that his hit
// calls nothing.
enum class Taken : uint8_t { yes, no, in_vain };

// A reference to what was asked for, if is_good(found, registration) says so of what is held by then. handle_out: of
// what was counted, but for `no`.
template <By kBy, SlotChoice kChoice, typename Asking, typename Good>
__attribute__((always_inline)) inline Taken try_take(Asker asker, const pinrail_allocation_table_t& table,
                                                     const Asking& asked, Good&& is_good,
                                                     pinrail_handle_t* handle_out) {
  Found found;
  pinrail_thread_t* const thread = asker.thread;
  if (thread->index >= __atomic_load_n(&table.hit_threads, __ATOMIC_ACQUIRE)) return Taken::no;
  if (!look_up<kBy>(table, asked, &found)) return Taken::no;
  pinrail_registration_t* const reg = arena::numbered(table.chunks, incarnation::number_of(found.incarnation));
  const uint64_t generation = incarnation::generation_of(found.incarnation);
  uint64_t* const near = references::near_ref_slot(thread, reg);
  if (!(kChoice == SlotChoice::first ? references::count_first(near, reg) : references::count(thread, reg, 1)))
    return Taken::no;
  *handle_out = {reg, generation};
  const uint32_t version = start_bucket::load(&thread->gpu_bucket->version);
  if (!is_there_still(found) || !is_good(found, reg)) return Taken::in_vain;
  const bool is_near = kChoice == SlotChoice::first || references::names(references::load_slot(near), reg);
  if (is_near) {
    note::write(near, {&thread->gpu_bucket->dates[0], version, generation, note_source(found.entry)});
    note::write_pool(near, asker.pool);
  }
  stat_counter::increment(table.hits + size_t{16} * thread->index);
  date(thread, found.entry);
  return Taken::yes;
}

// The same for blocks: if the memory lives, as far as its slot knows.
template <SlotChoice kChoice, typename Asking>
__attribute__((always_inline)) inline Taken try_take_block(Asker asker, const pinrail_allocation_table_t& table,
                                                           const Asking& block, pinrail_handle_t* handle_out) {
  const auto lives = [&](const Found& found, const pinrail_registration_t*) {
    return is_alive(found, block.slot_word);
  };
  return try_take<By::slot, kChoice>(asker, table, block, lives, handle_out);
}

// Outputs on success only.
inline bool settle(const pinrail_thread_t* thread, Taken taken, pinrail_handle_t handle, pinrail_handle_t* handle_out) {
  if (taken == Taken::in_vain) references::roll_back(thread, handle.reg);
  if (taken == Taken::yes) *handle_out = handle;
  return taken == Taken::yes;
}
template <SlotChoice kChoice, typename Asking>
bool take_block(Asker asker, const pinrail_allocation_table_t& table, const Asking& block,
                pinrail_handle_t* handle_out) {
  pinrail_handle_t handle;
  return settle(asker.thread, try_take_block<kChoice>(asker, table, block, &handle), handle, handle_out);
}

// The calling thread has just released the registration, and the table is still there, for destroying the pool excludes
// calls with its handles. If the entry is another one's by now, the registration itself is dated.
inline void date_release(pinrail_thread_t* thread, Entry* entry, pinrail_registration_t* reg) {
  if (timestamps::is_last(thread, entry)) return;
  if (incarnation::number_of(load(&entry->incarnation)) == arena::number_of(reg)) {
    date(thread, entry);
  } else {
    touch(reg, timestamps::use(thread, nullptr));
  }
}

}  // namespace pinrail::allocation_table

#endif
