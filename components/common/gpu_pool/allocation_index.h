// SPDX-License-Identifier: BSD-3-Clause
// allocation_index.h - the writers' side of the cuckoo hash table that hits read (base/hit/allocation_table.h). Each
// entry is in one of two buckets, cache lines of two entries, and an insert may displace it to its other bucket.
//
// Owns     the buckets and the owner records. Outgrown arrays stay until the object is destroyed, because readers may
//          still use them.
// Threads  writers hold the cache lock, except shut_hook() and open(); readers may run at any time.
// Hook     shut_hook(), open() and is_shut().
//
// allocation_index/N1  A registration is in the table at most once. If it finds no room, it is left out, and the pool
//     answers requests for it.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_ALLOCATION_INDEX_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_ALLOCATION_INDEX_H

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/hit/allocation_table.h"

namespace pinrail::gpu_pool {

// What a request must equal to match an entry.
struct EntryKey {
  uint64_t key;    // salted_key
  uint64_t owner;  // number of its owner record
  uint32_t sum;    // checksum of base, length and id
};

class alignas(64) Allocations {
 public:
  // chunks: the memory of the process's registrations. hits: one line of counters for each of hit_threads threads.
  Allocations(char* const* chunks, uint64_t* hits, uint32_t hit_threads)
      : table_{nullptr, 0, nullptr, nullptr, chunks, hits, hit_threads}, hit_threads_(hit_threads) {}

  const pinrail_allocation_table_t& table() const { return table_; }

  // Makes room for that many entries. May throw bad_alloc; then nothing has changed.
  void reserve(size_t count) {
    if (owners_.empty()) {
      hints_.reset(new uint64_t[PINRAIL_WORDS_HINTS]());
      table_.words = hints_.get();
      publish_owners(make_owners(kFirstOwners));
    }
    if (!blocks_.empty() && count <= kEntries * lines() / kFullOf * kFull)
      return;  // a fuller table would leave many entries out
    const size_t old_lines = blocks_.empty() ? 0 : lines();
    const size_t new_lines = blocks_.empty() ? kFirstLines : 2 * old_lines;
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back(make_block(new_lines));
    Entry* const old = table_.entries;
    __atomic_store_n(&table_.entries, blocks_.back().get(),
                     __ATOMIC_RELEASE);  // release: before the mask; pairs with the acquire loads of readers
    store(&table_.mask, (new_lines - 1) * kLine);
    for (size_t i = 0; i < kEntries * old_lines; ++i) {
      if (!is_free(&old[i])) place(take_content(&old[i]));  // take_content() first: a reader may be at the old entry
    }
  }

  // Stores an owner record. Either the table has no entry of that number, or the owner is unchanged. number: in and
  // out; 0: the owner has none yet, or the table has too many owners. May throw bad_alloc; then nothing has changed.
  void set_owner(const pinrail_owner_t& owner, uint64_t* number) {
    if (*number == allocation_table::kNoOwner) {
      if (known_owners_ > allocation_table::kMaxOwners) return;
      if (known_owners_ == room_) {
        Owners more = make_owners(2 * room_);
        std::copy_n(owners_.back().get(), room_, more.get());
        publish_owners(std::move(more));
      }
      *number = known_owners_++;
    }
    // The record is complete before an entry has its number.
    pinrail_owner_t& known = owners_.back()[*number];
    store(&known.pid, owner.pid);
    store(&known.start, owner.start);
    store(&known.segment, owner.segment);
    __atomic_store_n(&known.words, owner.words, __ATOMIC_RELEASE);
    const size_t hint = allocation_table::hint_of(allocation_table::owner_salt(owner.pid, owner.start, owner.segment));
    __atomic_store_n(&hints_[hint], reinterpret_cast<uintptr_t>(owner.words), __ATOMIC_RELAXED);
  }

  // Inserts a registration that no reader can have. It is left out if an entry cannot express its number or owner.
  void insert(pinrail_registration_t* reg, const EntryKey& entry_key) {
    const uint64_t number = arena::number_of(reg);
    if (entry_key.owner == allocation_table::kNoOwner || !arena::is_number(number)) return;
    place({entry_key, incarnation::of(number, generation_of(reg)), last_use(reg)});
  }

  // Removes the entry: no reader finds it from now on. The registration takes over the entry's last use.
  void remove(pinrail_registration_t* reg, uint64_t key) {
    if (Entry* entry = find(reg, key)) touch(reg, take_content(entry).last_use);
  }

  // The epoch of the last use noted in the registration's entry; 0 if it has none.
  uint64_t last_use_of(const pinrail_registration_t* reg, uint64_t key) const {
    const Entry* entry = find(reg, key);
    return entry == nullptr ? 0 : date_of(entry);
  }

  // While the table is shut, hits ask the pool. Any context.
  void shut_hook() { __atomic_store_n(&table_.hit_threads, 0, __ATOMIC_SEQ_CST); }
  void open() { __atomic_store_n(&table_.hit_threads, hit_threads_, __ATOMIC_SEQ_CST); }
  bool is_shut() const { return __atomic_load_n(&table_.hit_threads, __ATOMIC_ACQUIRE) == 0; }

 private:
  using Entry = allocation_table::Entry;
  struct Free {
    void operator()(Entry* memory) const { std::free(memory); }
  };
  using Block = std::unique_ptr<Entry[], Free>;
  using Owners = std::unique_ptr<pinrail_owner_t[]>;

  // The content of an entry that is being moved.
  struct Content {
    EntryKey entry_key;
    uint64_t incarnation;
    uint64_t last_use;
  };

  static constexpr size_t kEntries = allocation_table::kEntries;
  static constexpr size_t kLine = kEntries * sizeof(Entry);
  static constexpr size_t kFirstLines = 64;  // a page
  static constexpr size_t kFull = 13, kFullOf = 16;
  static constexpr int kMoves = 64;  // displacements that one insert makes at most
  static constexpr uint64_t kFirstOwners = 64;

  static void store(uint64_t* word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);  // pairs with allocation_table::load()
  }

  static Block make_block(size_t lines) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t bytes = lines * kLine;
    const bool huge = bytes >= kHugePage;
    Block block(static_cast<Entry*>(std::aligned_alloc(huge ? kHugePage : 4096, bytes)));
    if (block == nullptr) throw std::bad_alloc();
    if (huge) madvise(block.get(), bytes, MADV_HUGEPAGE);  // advice only: hits read all over the table
    std::fill_n(block.get(), kEntries * lines, Entry{});
    return block;
  }

  Owners make_owners(uint64_t room) {
    constexpr pinrail_owner_t kNoOwner = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, nullptr};
    owners_.reserve(owners_.size() + 1);
    Owners made(new pinrail_owner_t[room]);
    std::fill_n(made.get(), room, kNoOwner);
    return made;
  }
  void publish_owners(Owners owners) {
    __atomic_store_n(&table_.owners, owners.get(), __ATOMIC_RELEASE);  // pairs with look_up()
    room_ = room_ == 0 ? kFirstOwners : 2 * room_;
    owners_.push_back(std::move(owners));
  }

  size_t lines() const { return table_.mask / kLine + 1; }
  static bool is_free(const Entry* entry) {
    return allocation_table::owner_of(entry->tag) == allocation_table::kNoOwner;
  }
  static uint64_t date_of(const Entry* entry) {
    return __atomic_load_n(&entry->last_use, __ATOMIC_RELAXED);  // relaxed: it only orders evictions
  }

  // The key's two buckets: their first entries.
  struct Buckets {
    Entry *first, *second;
  };
  Buckets buckets_of_key(uint64_t key) const {
    const allocation_table::Hash hash = allocation_table::hash_of(key);
    return {allocation_table::bucket_of(table_.entries, table_.mask, hash.first),
            allocation_table::bucket_of(table_.entries, table_.mask, hash.second)};
  }

  Entry* find(const pinrail_registration_t* reg, uint64_t key) const {
    const uint64_t number = arena::number_of(reg);
    const Buckets buckets = buckets_of_key(key);
    for (Entry* bucket : {buckets.first, buckets.second}) {
      for (Entry* entry = bucket; entry != bucket + kEntries; ++entry) {
        if (!is_free(entry) && incarnation::number_of(entry->incarnation) == number) return entry;
      }
    }
    return nullptr;
  }

  // Returns the entry's next version, in place; the tag's other bits are 0.
  static uint64_t next_version(const Entry* entry) {
    constexpr uint64_t kVersions =
        (uint64_t{1} << allocation_table::kOwnerAt) - (uint64_t{1} << allocation_table::kVersionAt);
    return (entry->tag + (uint64_t{1} << allocation_table::kVersionAt)) & kVersions;
  }

  // Writes an entry (allocation_table/A2). The stores after the odd version are release too, so they stay behind it.
  static void fill(Entry* entry, const Content& with) {
    store(&entry->tag, next_version(entry));
    store(&entry->key, with.entry_key.key);
    store(&entry->incarnation, with.incarnation);
    store(&entry->last_use, with.last_use);
    store(&entry->tag, with.entry_key.owner << allocation_table::kOwnerAt | next_version(entry) | with.entry_key.sum);
  }

  // Frees an entry and returns its content.
  static Content take_content(Entry* entry) {
    const EntryKey entry_key = {entry->key, allocation_table::owner_of(entry->tag),
                                allocation_table::sum_of(entry->tag)};
    const Content content = {entry_key, entry->incarnation, date_of(entry)};
    store(&entry->tag, next_version(entry));
    store(&entry->incarnation, 0);  // a release then dates the registration instead
    store(&entry->tag, next_version(entry));
    return content;
  }

  // Returns a free entry of the bucket, or NULL.
  static Entry* free_one(Entry* bucket) {
    Entry* const found = std::find_if(bucket, bucket + kEntries, [](const Entry& entry) { return is_free(&entry); });
    return found == bucket + kEntries ? nullptr : found;
  }

  // A random victim: round-robin could cycle.
  size_t any_entry() {
    lots_ = lots_ * 6364136223846793005u + 1442695040888963407u;
    return lots_ >> 63;
  }
  static_assert(kEntries == 2, "one bit");

  // Cuckoo insert. If both buckets are full, it displaces an entry of the bucket that the displaced entry did not come
  // from. After kMoves displacements the last displaced entry is left out.
  void place(Content content) {
    const Entry* last = nullptr;
    for (int move = 0; move < kMoves; ++move) {
      const Buckets buckets = buckets_of_key(content.entry_key.key);
      Entry* free = free_one(buckets.first);
      if (free == nullptr) free = free_one(buckets.second);
      if (free != nullptr) {
        fill(free, content);
        return;
      }
      Entry* const bucket = buckets.first == last ? buckets.second : buckets.first;
      Entry* const victim = bucket + any_entry();
      const Content other = take_content(victim);
      fill(victim, content);
      content = other;
      last = bucket;
    }
    touch(arena::numbered(table_.chunks, incarnation::number_of(content.incarnation)), content.last_use);
  }

  pinrail_allocation_table_t table_;
  const uint32_t hit_threads_;  // threads with a counter line; the table's value while it is open
  std::vector<Block> blocks_;   // readers start from the last one
  std::vector<Owners> owners_;
  std::unique_ptr<uint64_t[]> hints_;
  uint64_t room_ = 0;          // owner records in the last array
  uint64_t known_owners_ = 1;  // number 0 belongs to free entries
  uint64_t lots_ = 1;          // state of the random numbers
};

}  // namespace pinrail::gpu_pool

#endif
