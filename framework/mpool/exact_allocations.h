// SPDX-License-Identifier: BSD-3-Clause
// exact_allocations.h - the writers' side of the table that hits read (base/core/allocations.h): each entry is in one
// of two homes, and moves to the other one if that makes room.
//
// Owns     its entries. Those that were outgrown stay until it is destroyed, for readers may be there.
// Threads  one at a time (the lock of the cache); readers at any time.
//
// N1  A registration is in once or not at all. What finds no room is left out, and the pool answers for it.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_ALLOCATIONS_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_ALLOCATIONS_H

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/core/allocations.h"

namespace pinrail::exact {

class alignas(64) Allocations {
 public:
  Allocations(uint64_t* hits, uint32_t hit_threads) : table_{nullptr, 0, 0, hits, hit_threads} {}

  const pinrail_allocations_t& table() const { return table_; }

  // Room for that many. May throw bad_alloc; then nothing changed.
  void reserve(size_t count) {
    if (!blocks_.empty() && 9 * count <= 4 * lines()) return;  // fuller ones leave many out
    const size_t old_lines = blocks_.empty() ? 0 : lines();
    const size_t new_lines = blocks_.empty() ? kFirstLines : 2 * old_lines;
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back(make_block(new_lines));
    Entry* const old = table_.entries;
    __atomic_store_n(&table_.entries, blocks_.back().get(), __ATOMIC_RELEASE);  // before the mask; pairs with find()
    store(&table_.mask, (new_lines - 1) * sizeof(Entry));
    for (size_t i = 0; i < old_lines; ++i) {
      if (is_free(&old[i])) continue;
      const Entry entry = leave(&old[i]);  // a reader may be on his way to it
      put(entry);
    }
  }

  // A registration that nobody asks for yet. slot: its number; 0 if it has none. Left out where an entry cannot say it.
  void insert(pinrail_registration_t* reg, const pinrail_owner_t* owner, uint64_t place, uint64_t id, uint64_t word,
              uint64_t slot) {
    const auto address = reinterpret_cast<uintptr_t>(reg);
    if (slot >= allocations::kMostSlots || address > allocations::kMostAddress) return;
    put({place, address << allocations::kNameShift, allocations::life_of(generation_of(reg), slot), reg->length, id,
         word, owner, last_use(reg)});
  }

  // From now on no reader gets it. What he dated there the registration takes over.
  void remove(pinrail_registration_t* reg, uint64_t place) {
    if (Entry* entry = find(reg, place)) touch(reg, leave(entry).last_use);
  }

  // The date of its last hit's release; 0 if it is not in.
  uint64_t last_use_of(const pinrail_registration_t* reg, uint64_t place) const {
    const Entry* entry = find(reg, place);
    return entry == nullptr ? 0 : __atomic_load_n(&entry->last_use, __ATOMIC_RELAXED);
  }

  // While it is shut the pool is asked. Any context.
  void shut() { __atomic_store_n(&table_.shut, 1, __ATOMIC_SEQ_CST); }
  void open() { __atomic_store_n(&table_.shut, 0, __ATOMIC_SEQ_CST); }
  bool is_shut() const { return __atomic_load_n(&table_.shut, __ATOMIC_ACQUIRE) != 0; }

 private:
  using Entry = allocations::Entry;
  struct Free {
    void operator()(Entry* memory) const { std::free(memory); }
  };
  using Block = std::unique_ptr<Entry[], Free>;

  static constexpr size_t kFirstLines = 64;  // a page
  static constexpr int kMoves = 64;          // that one insert makes at most

  static void store(uint64_t* word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);  // pairs with allocations::load()
  }

  static Block make_block(size_t lines) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t bytes = lines * sizeof(Entry);
    const bool huge = bytes >= kHugePage;
    Block block(static_cast<Entry*>(std::aligned_alloc(huge ? kHugePage : 4096, bytes)));
    if (block == nullptr) throw std::bad_alloc();
    if (huge) madvise(block.get(), bytes, MADV_HUGEPAGE);  // a wish: hits look all over them
    for (size_t i = 0; i < lines; ++i) block[i] = {0, 1, 0, 0, 0, 0, nullptr, 0};
    return block;
  }

  size_t lines() const { return table_.mask / sizeof(Entry) + 1; }
  static bool is_free(const Entry* entry) { return (entry->name & 1) != 0; }

  Entry* first_home(uint64_t place) const {
    return allocations::home(table_.entries, table_.mask, allocations::hash_of(place).first);
  }
  Entry* second_home(uint64_t place) const {
    return allocations::home(table_.entries, table_.mask, allocations::hash_of(place).second);
  }

  Entry* find(const pinrail_registration_t* reg, uint64_t place) const {
    for (Entry* home : {first_home(place), second_home(place)}) {
      if (!is_free(home) && allocations::named_by(home->name) == reg) return home;
    }
    return nullptr;
  }

  // The version first, odd; what follows is stored with release as well, and so behind it.
  static void fill(Entry* entry, const Entry& with) {
    store(&entry->place, with.place);
    store(&entry->life, with.life);
    store(&entry->length, with.length);
    store(&entry->id, with.id);
    store(&entry->word, with.word);
    __atomic_store_n(&entry->owner, with.owner, __ATOMIC_RELEASE);
    store(&entry->last_use, with.last_use);
    const uint64_t version = (entry->name + 1) & allocations::kVersions;
    store(&entry->name, (with.name & ~allocations::kVersions) | version);
  }

  // What it held, and then it is free.
  static Entry leave(Entry* entry) {
    const uint64_t name = entry->name;
    store(&entry->name, (name + 1) & allocations::kVersions);
    return {entry->place, name,        entry->life,  entry->length,
            entry->id,    entry->word, entry->owner, __atomic_load_n(&entry->last_use, __ATOMIC_RELAXED)};
  }

  // Whoever stands in both its homes is moved to his other one, and so on.
  void put(Entry entry) {
    Entry* last = nullptr;
    for (int move = 0; move < kMoves; ++move) {
      Entry* const first = first_home(entry.place);
      Entry* const second = second_home(entry.place);
      Entry* home = is_free(first) ? first : second;
      if (!is_free(home)) {
        home = first == last ? second : first;
        const Entry other = leave(home);
        fill(home, entry);
        entry = other;
        last = home;
        continue;
      }
      fill(home, entry);
      return;
    }
    touch(allocations::named_by(entry.name), entry.last_use);
  }

  pinrail_allocations_t table_;
  std::vector<Block> blocks_;  // the last one is in use
};

}  // namespace pinrail::exact

#endif
