// SPDX-License-Identifier: BSD-3-Clause
// allocation_index.h - the writers' side of the table that hits read (base/hit/allocation_table.h): each entry is in
// one of two buckets, lines with room for two, and moves to the other one if that makes room.
//
// Owns     its lines, and copies of what owners are. Those that were outgrown stay until it is destroyed, for readers
// may
//          be there.
// Threads  one at a time (the lock of the cache); readers at any time.
//
// allocation_index/N1  A registration is in once or not at all. What finds no room is left out, and the pool answers
//     for it.
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

// What an entry is found by, and has to agree with.
struct Called {
  uint64_t key;    // salted_key
  uint64_t owner;  // his number
  uint32_t sum;
};

class alignas(64) Allocations {
 public:
  // chunks: of the process's registrations. hits: a line for each of hit_threads threads.
  Allocations(char* const* chunks, uint64_t* hits, uint32_t hit_threads)
      : table_{nullptr, 0, nullptr, nullptr, chunks, hits, hit_threads}, hit_threads_(hit_threads) {}

  const pinrail_allocation_table_t& table() const { return table_; }

  // Room for that many. May throw bad_alloc; then nothing changed.
  void reserve(size_t count) {
    if (owners_.empty()) {
      hints_.reset(new uint64_t[PINRAIL_WORDS_HINTS]());
      table_.words = hints_.get();
      publish_owners(make_owners(kFirstOwners));
    }
    if (!blocks_.empty() && count <= kEntries * lines() / kFullOf * kFull) return;  // fuller ones leave many out
    const size_t old_lines = blocks_.empty() ? 0 : lines();
    const size_t new_lines = blocks_.empty() ? kFirstLines : 2 * old_lines;
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back(make_block(new_lines));
    Entry* const old = table_.entries;
    __atomic_store_n(&table_.entries, blocks_.back().get(), __ATOMIC_RELEASE);  // before the mask; pairs with find()
    store(&table_.mask, (new_lines - 1) * kLine);
    for (size_t i = 0; i < kEntries * old_lines; ++i) {
      if (!is_free(&old[i])) put(leave(&old[i]));  // a reader may be on his way to it
    }
  }

  // An owner of whom no entry is in, or who is as he was. number: his; 0: he has none yet, or if there are too many of
  // them. May throw bad_alloc; then nothing changed.
  void introduce(const pinrail_owner_t& owner, uint64_t* number) {
    if (*number == allocation_table::kNoOwner) {
      if (known_owners_ > allocation_table::kMaxOwners) return;
      if (known_owners_ == room_) {
        Owners more = make_owners(2 * room_);
        std::copy_n(owners_.back().get(), room_, more.get());
        publish_owners(std::move(more));
      }
      *number = known_owners_++;
    }
    // Before his number is in an entry.
    pinrail_owner_t& known = owners_.back()[*number];
    store(&known.pid, owner.pid);
    store(&known.start, owner.start);
    store(&known.segment, owner.segment);
    __atomic_store_n(&known.words, owner.words, __ATOMIC_RELEASE);
    const size_t hint = allocation_table::hint_of(allocation_table::owner_salt(owner.pid, owner.start, owner.segment));
    __atomic_store_n(&hints_[hint], reinterpret_cast<uintptr_t>(owner.words), __ATOMIC_RELAXED);
  }

  // A registration that nobody asks for yet. Left out where an entry cannot say it.
  void insert(pinrail_registration_t* reg, const Called& called) {
    const uint64_t number = arena::number_of(reg);
    if (called.owner == allocation_table::kNoOwner || !arena::is_number(number)) return;
    put({called, incarnation::of(number, generation_of(reg)), last_use(reg)});
  }

  // From now on no reader gets it. What he dated there the registration takes over.
  void remove(pinrail_registration_t* reg, uint64_t key) {
    if (Entry* entry = find(reg, key)) touch(reg, leave(entry).last_use);
  }

  // The date of its last hit's release; 0 if it is not in.
  uint64_t last_use_of(const pinrail_registration_t* reg, uint64_t key) const {
    const Entry* entry = find(reg, key);
    return entry == nullptr ? 0 : date_of(entry);
  }

  // While it is shut the pool is asked. Any context.
  void shut() { __atomic_store_n(&table_.hit_threads, 0, __ATOMIC_SEQ_CST); }
  void open() { __atomic_store_n(&table_.hit_threads, hit_threads_, __ATOMIC_SEQ_CST); }
  bool is_shut() const { return __atomic_load_n(&table_.hit_threads, __ATOMIC_ACQUIRE) == 0; }

 private:
  using Entry = allocation_table::Entry;
  struct Free {
    void operator()(Entry* memory) const { std::free(memory); }
  };
  using Block = std::unique_ptr<Entry[], Free>;
  using Owners = std::unique_ptr<pinrail_owner_t[]>;

  // An entry on its way.
  struct Content {
    Called called;
    uint64_t incarnation;
    uint64_t last_use;
  };

  static constexpr size_t kEntries = allocation_table::kEntries;
  static constexpr size_t kLine = kEntries * sizeof(Entry);
  static constexpr size_t kFirstLines = 64;  // a page
  static constexpr size_t kFull = 13, kFullOf = 16;
  static constexpr int kMoves = 64;  // that one insert makes at most
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
    if (huge) madvise(block.get(), bytes, MADV_HUGEPAGE);  // a wish: hits consider all over them
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
    return __atomic_load_n(&entry->last_use, __ATOMIC_RELAXED);  // only an order hangs on it
  }

  // Its two buckets: the first entries of their lines.
  struct Homes {
    Entry *first, *second;
  };
  Homes homes_of(uint64_t key) const {
    const allocation_table::Hash hash = allocation_table::hash_of(key);
    return {allocation_table::bucket_of(table_.entries, table_.mask, hash.first),
            allocation_table::bucket_of(table_.entries, table_.mask, hash.second)};
  }

  Entry* find(const pinrail_registration_t* reg, uint64_t key) const {
    const uint64_t number = arena::number_of(reg);
    const Homes buckets = homes_of(key);
    for (Entry* bucket : {buckets.first, buckets.second}) {
      for (Entry* entry = bucket; entry != bucket + kEntries; ++entry) {
        if (!is_free(entry) && incarnation::number_of(entry->incarnation) == number) return entry;
      }
    }
    return nullptr;
  }

  // The next version of the entry's, with nothing else in the tag.
  static uint64_t next_version(const Entry* entry) {
    constexpr uint64_t kVersions =
        (uint64_t{1} << allocation_table::kOwnerAt) - (uint64_t{1} << allocation_table::kVersionAt);
    return (entry->tag + (uint64_t{1} << allocation_table::kVersionAt)) & kVersions;
  }

  // allocation_table/A2: what follows an odd version is stored with release as well, and so behind it.
  static void fill(Entry* entry, const Content& with) {
    store(&entry->tag, next_version(entry));
    store(&entry->key, with.called.key);
    store(&entry->incarnation, with.incarnation);
    store(&entry->last_use, with.last_use);
    store(&entry->tag, with.called.owner << allocation_table::kOwnerAt | next_version(entry) | with.called.sum);
  }

  // What it held, and then it is free.
  static Content leave(Entry* entry) {
    const Called called = {entry->key, allocation_table::owner_of(entry->tag), allocation_table::sum_of(entry->tag)};
    const Content content = {called, entry->incarnation, date_of(entry)};
    store(&entry->tag, next_version(entry));
    store(&entry->incarnation, 0);  // who releases it dates it elsewhere
    store(&entry->tag, next_version(entry));
    return content;
  }

  static Entry* free_one(Entry* bucket) {
    Entry* const found = std::find_if(bucket, bucket + kEntries, [](const Entry& entry) { return is_free(&entry); });
    return found == bucket + kEntries ? nullptr : found;
  }

  // By lot: whoever chose them in turn would go round in circles.
  size_t any_entry() {
    lots_ = lots_ * 6364136223846793005u + 1442695040888963407u;
    return lots_ >> 63;
  }
  static_assert(kEntries == 2, "one bit");

  // Where both buckets are full, somebody moves on from the one that he who is moved did not just leave.
  void put(Content content) {
    const Entry* last = nullptr;
    for (int move = 0; move < kMoves; ++move) {
      const Homes buckets = homes_of(content.called.key);
      Entry* free = free_one(buckets.first);
      if (free == nullptr) free = free_one(buckets.second);
      if (free != nullptr) {
        fill(free, content);
        return;
      }
      Entry* const bucket = buckets.first == last ? buckets.second : buckets.first;
      Entry* const victim = bucket + any_entry();
      const Content other = leave(victim);
      fill(victim, content);
      content = other;
      last = bucket;
    }
    touch(arena::numbered(table_.chunks, incarnation::number_of(content.incarnation)), content.last_use);
  }

  pinrail_allocation_table_t table_;
  const uint32_t hit_threads_;  // while it is open
  std::vector<Block> blocks_;   // the last one is in use
  std::vector<Owners> owners_;
  std::unique_ptr<uint64_t[]> hints_;
  uint64_t room_ = 0;          // for owners, the last list
  uint64_t known_owners_ = 1;  // the first number is nobody's
  uint64_t lots_ = 1;
};

}  // namespace pinrail::gpu_pool

#endif
