// SPDX-License-Identifier: BSD-3-Clause
// allocation_table.h - which registration belongs to this allocation of GPU memory? The readers' side of a cuckoo hash
// table that a GPU pool keeps. A hit compares the identity of the allocation with one entry and does not read the
// registration. Each key has two buckets of two entries, which are fetched at the same time.
//
// The identity is compared in full: the exporting process, and the incarnation of the allocation's validity slot or,
// without a slot, the buffer id. Base and length follow from the identity; they are compared by a 32-bit checksum, so
// that a corrupted block does not match.
//
// The table may always answer "not found"; then the caller asks the pool. So readers need no lock.
//
// Owns     nothing. The pool owns entries and owner records and changes them while others read.
// Threads  all functions at any time. None of them waits.
//
// allocation_table/A1  An entry names a registration only while that is indexed and not claimed. A thread that claims
//     or kills one removes its entry first and then sums, after a membarrier (references.h). So if a reader counts a
//     reference of the registration of an entry, and afterwards sees the entry unchanged, every later sum includes its
//     reference. If the entry was removed and inserted again meanwhile, the registration was not killed.
// allocation_table/A2  The version in an entry's tag is odd while the entry is changed. A reader that sees the same tag
//     and the same incarnation before and after its reads has read consistent fields, because an incarnation belongs to
//     one registration, and that to one allocation.
// allocation_table/A3  Only registrations that are counted per thread are in the table, so a count that meets a later
//     incarnation of the memory is harmless.
// allocation_table/A4  While an entry is in the table, its owner record does not change and the owner's validity words
//     stay mapped. So these are read only while the reference is held.
// allocation_table/A5  Notes (note/N1) of GPU memory refer to one process-wide version. It changes after the entry of a
//     dead registration was removed, and a release with an older note notices.
#ifndef PINRAIL_BASE_HIT_ALLOCATION_TABLE_H
#define PINRAIL_BASE_HIT_ALLOCATION_TABLE_H

#include "base/core/select.h"
#include "base/core/stat_counter.h"
#include "base/hit/note.h"
#include "base/lru/timestamps.h"
#include "base/registration/incarnation.h"
#include "base/registration/references.h"
#include "base/registration/registration_arena.h"

namespace pinrail::allocation_table {

using Entry = pinrail_allocation_t;
constexpr size_t kEntries = 2;  // per bucket
static_assert(kEntries * sizeof(Entry) == 64, "one line of memory");

// acquire: pairs with the pool's release stores (allocation_index.h).
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// A tag: the owner's number in the upper 16 bits, then the version, the checksum in the lower 32.
constexpr unsigned kOwnerAt = 48, kVersionAt = 32;
constexpr uint64_t kNoOwner = 0;  // the owner number of a free entry
constexpr uint64_t kMaxOwners = 0xffff;
constexpr bool is_changing(uint64_t tag) { return (tag >> kVersionAt & 1) != 0; }
constexpr uint64_t owner_of(uint64_t tag) { return tag >> kOwnerAt; }
constexpr uint32_t sum_of(uint64_t tag) { return static_cast<uint32_t>(tag); }

// A validity slot's incarnation as a key: the slot's number in the lower bits, its generation above.
constexpr unsigned kSlotBits = 24;
constexpr uint64_t kImporters = 0xffff;  // the bits of a slot's word that are not compared
constexpr unsigned kWordShift = 17;      // the bit "dead" is not compared either: a word with it is never valid
constexpr bool is_keyed(uint64_t slot, uint64_t word) {
  return (slot >> kSlotBits | word >> (64 - kSlotBits + kWordShift)) == 0;
}
constexpr uint64_t key_of_slot(uint64_t slot, uint64_t word) { return word >> kWordShift << kSlotBits | slot; }
constexpr uint64_t slot_of(uint64_t key) { return key & ((uint64_t{1} << kSlotBits) - 1); }

// Keys are XORed with the owner's salt, because all owners number their slots and buffers alike.
inline uint64_t owner_salt(uint64_t pid, uint64_t start, uint64_t segment) {
  return ((start ^ segment) + pid) * 0x9E3779B97F4A7C15u;
}

inline uint32_t checksum_of_range(uint64_t base, uint64_t length, uint64_t id) {
  const uint64_t all = base ^ (length << 23 | length >> 41) ^ (id << 47 | id >> 17);
  return static_cast<uint32_t>(all * 0xD6E8FEB86659FD93u >> 32);
}

// Index of the hint for an owner's validity words. It uses the salt's upper bits, which depend on all others.
constexpr size_t hint_of(uint64_t salt) { return salt >> 52; }
static_assert(PINRAIL_WORDS_HINTS == 1 << (64 - 52), "one for each");

// A hit reads the slot's word last, and its address depends on two other loads. So it is prefetched through a hint; a
// wrong hint costs nothing more.
inline void prefetch_slot_word(const pinrail_allocation_table_t& table, uint64_t salt, uint64_t slot) {
  const uint64_t words = __atomic_load_n(&table.words[hint_of(salt)], __ATOMIC_RELAXED);
  __builtin_prefetch(reinterpret_cast<const void*>(words + slot * sizeof(uint64_t)));  // NOLINT: no pointer, a hint
}

// Two rounds: after one round, consecutive keys would fill some buckets and leave others empty.
struct Hash {
  uint64_t first, second;  // bits 6 and up select a bucket
};
inline Hash hash_of(uint64_t key) {
  uint64_t hash = key * 0xD6E8FEB86659FD93u;
  hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
  return {hash >> 32, hash >> 8};
}

// Returns the bucket that the hash selects. mask: of byte offsets, (buckets - 1) * 64; loaded before entries, because
// the table only grows and its buckets stay valid for a smaller mask.
inline Entry* bucket_of(Entry* entries, uint64_t mask, uint64_t hash) {
  return reinterpret_cast<Entry*>(reinterpret_cast<char*>(entries) + (hash & mask));
}

// Returns the entry with this key, or any other entry if there is none; the caller compares. Branchless: the result
// cannot be predicted, and a misprediction would cost as much as the rest of a hit.
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

// What identifies an allocation in a table.
enum class By : uint8_t {
  id,    // the buffer id
  slot,  // its slot's incarnation, where the allocation has a slot; else the buffer id
};

// The identity of an allocation, with the field names of pinrail_gpu_block_t, so that a block can be used as it is.
struct AllocationKey {
  uint64_t pid, start, segment;
  uint64_t base, length, buffer_id;
  uint64_t slot, slot_word;  // By::slot only
};

// A block as a hit reads it. It lies in the caller's memory, which a peer may be able to change meanwhile. So what is
// checked before it is compared, or compared twice, is read once.
struct BlockView {
  template <typename Block>
  explicit BlockView(const Block& block)
      : pid(block.pid),
        slot(block.slot),
        start(block.start),
        segment(block.segment),
        base(block.base),
        buffer_id(block.buffer_id),
        length(__atomic_load_n(&block.length, __ATOMIC_RELAXED)),
        slot_word(__atomic_load_n(&block.slot_word, __ATOMIC_RELAXED)) {}
  const uint32_t &pid, &slot;
  const uint64_t &start, &segment, &base, &buffer_id;
  const uint64_t length, slot_word;
};

// An entry's fields as a lookup read them.
struct Found {
  Entry* entry;
  uint64_t key;
  uint64_t incarnation;
  uint64_t tag;
  const pinrail_owner_t* owner;
};

// Looks up an allocation. Returns false if the table has none or the entry is being changed. Takes no reference.
template <By kBy, typename AllocationLike>
__attribute__((always_inline)) inline bool look_up(const pinrail_allocation_table_t& table,
                                                   const AllocationLike& allocation, Found* found_out) {
  const uint64_t salt = owner_salt(allocation.pid, allocation.start, allocation.segment);
  uint64_t key = allocation.buffer_id;
  if (kBy == By::slot && allocation.segment != 0) {
    if (!is_keyed(allocation.slot, allocation.slot_word)) return false;
    key = key_of_slot(allocation.slot, allocation.slot_word);
    prefetch_slot_word(table, salt, allocation.slot);
  }
  const uint64_t salted_key = key ^ salt;
  Entry* const entry = find(table, salted_key);
  const uint64_t tag = load(&entry->tag);
  const uint64_t incarnation = load(&entry->incarnation);
  if (load(&entry->key) != salted_key || is_changing(tag)) return false;
  if (sum_of(tag) != checksum_of_range(allocation.base, allocation.length, allocation.buffer_id)) return false;
  // May be an older array; the record is unchanged while the entry is in the table (allocation_table/A4).
  const pinrail_owner_t* const owner = __atomic_load_n(&table.owners, __ATOMIC_ACQUIRE) + owner_of(tag);
  if (load(&owner->pid) != allocation.pid || load(&owner->start) != allocation.start) return false;
  if (load(&owner->segment) != allocation.segment) return false;
  *found_out = {entry, key, incarnation, tag, owner};
  return true;
}

// Returns whether the entry is unchanged. The caller has counted a reference and read all other fields
// (allocation_table/A1, allocation_table/A2).
inline bool is_unchanged(const Found& found) {
  return load(&found.entry->tag) == found.tag && load(&found.entry->incarnation) == found.incarnation;
}

// Returns whether the exporter still has the memory, as far as its slot's word and the flag before the words (the
// exporter has ended) tell: two loads. The caller holds a reference (allocation_table/A4).
constexpr uint64_t kEnded = uint64_t{1} << 30;  // FUTEX_OWNER_DIED, which the kernel sets
inline bool is_alive(const Found& found, uint64_t word) {
  const uint64_t* const words = __atomic_load_n(&found.owner->words, __ATOMIC_ACQUIRE);
  if (words == nullptr) return true;
  return (((load(&words[slot_of(found.key)]) & ~kImporters) ^ word) | (load(words - 1) & kEnded)) == 0;
}

// The source of a note (note/N1): the entry's address, marked by its lowest bit.
inline const void* note_source(const Entry* entry) { return reinterpret_cast<const char*>(entry) + 1; }
// Whether a note's source is an entry, and not a pool.
inline bool is_entry(const void* noted) { return (reinterpret_cast<uintptr_t>(noted) & 1) != 0; }
// The entry of a note's source; NULL if the source is a pool.
inline Entry* entry_of(const void* noted) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return is_entry(noted) ? reinterpret_cast<Entry*>(reinterpret_cast<uintptr_t>(noted) - 1) : nullptr;
}

// Invalidates all notes of GPU memory (allocation_table/A5). release: after the state word and the entry were changed.
inline void invalidate_notes(pinrail_start_bucket_t* line) { __atomic_fetch_add(&line->version, 2, __ATOMIC_RELEASE); }

// relaxed: only the order of eviction depends on it.
inline void date(pinrail_thread_t* thread, Entry* entry) {
  __atomic_store_n(&entry->last_use, timestamps::use(thread, entry), __ATOMIC_RELAXED);
}

// Which reference slots a hit may use. first: the near slot if it is empty, in few instructions. any: near or far.
enum class SlotChoice : uint8_t { first, any };

// The calling thread, and the pool of its request.
struct Requester {
  pinrail_thread_t* thread;
  const pinrail_mpool_t* pool;
};

// yes: a reference was taken. no: the table has no answer, or the thread has no free slot. counted_but_invalid: a
// reference was counted, but the entry has changed or the memory is gone; the caller must call references::roll_back().
// That call is not made here, so that the inlined hit path contains no call.
enum class Taken : uint8_t { yes, no, counted_but_invalid };

// Looks up and counts a reference. is_good(found, registration) is asked while the reference is counted, and decides
// whether the memory is still valid. handle_out: written unless the result is `no`.
template <By kBy, SlotChoice kChoice, typename AllocationLike, typename Good>
__attribute__((always_inline)) inline Taken try_take(Requester requester, const pinrail_allocation_table_t& table,
                                                     const AllocationLike& allocation, Good&& is_good,
                                                     pinrail_handle_t* handle_out) {
  Found found;
  pinrail_thread_t* const thread = requester.thread;
  if (thread->index >= __atomic_load_n(&table.hit_threads, __ATOMIC_ACQUIRE)) return Taken::no;
  if (!look_up<kBy>(table, allocation, &found)) return Taken::no;
  pinrail_registration_t* const reg = arena::numbered(table.chunks, incarnation::number_of(found.incarnation));
  const uint64_t generation = incarnation::generation_of(found.incarnation);
  uint64_t* const near = references::near_ref_slot(thread, reg);
  if (!(kChoice == SlotChoice::first ? references::count_first(near, reg) : references::count(thread, reg, 1)))
    return Taken::no;
  *handle_out = {reg, generation};
  const uint32_t version = start_bucket::load(&thread->gpu_bucket->version);
  if (!is_unchanged(found) || !is_good(found, reg)) return Taken::counted_but_invalid;
  const bool is_near = kChoice == SlotChoice::first || references::names(references::load_slot(near), reg);
  if (is_near) {
    note::write(near, {&thread->gpu_bucket->dates[0], version, generation, note_source(found.entry)});
    note::write_pool(near, requester.pool);
  }
  stat_counter::increment(table.hits + size_t{16} * thread->index);
  date(thread, found.entry);
  return Taken::yes;
}

// try_take() for a block: the memory is valid while its exporter has it (is_alive).
template <SlotChoice kChoice, typename AllocationLike>
__attribute__((always_inline)) inline Taken try_take_block(Requester requester, const pinrail_allocation_table_t& table,
                                                           const AllocationLike& block, pinrail_handle_t* handle_out) {
  const auto is_allocated = [&](const Found& found, const pinrail_registration_t*) {
    return is_alive(found, block.slot_word);
  };
  return try_take<By::slot, kChoice>(requester, table, block, is_allocated, handle_out);
}

// Completes a try_take(): rolls back a speculative count; writes handle_out only on success.
inline bool finish_take(const pinrail_thread_t* thread, Taken taken, pinrail_handle_t handle,
                        pinrail_handle_t* handle_out) {
  if (taken == Taken::counted_but_invalid) references::roll_back(thread, handle.reg);
  if (taken == Taken::yes) *handle_out = handle;
  return taken == Taken::yes;
}
template <SlotChoice kChoice, typename AllocationLike>
bool take_block(Requester requester, const pinrail_allocation_table_t& table, const AllocationLike& block,
                pinrail_handle_t* handle_out) {
  pinrail_handle_t handle;
  return finish_take(requester.thread, try_take_block<kChoice>(requester, table, block, &handle), handle, handle_out);
}

// Records the use of a registration that the calling thread has just released. The table is still there, because
// destroying a pool excludes calls with its handles. If the entry now belongs to another registration, the registration
// itself is updated.
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
