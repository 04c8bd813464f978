// SPDX-License-Identifier: BSD-3-Clause
// vma_start_table.h - the writer's side of the start table, a cuckoo hash table; base/hit/start_table.h is the readers'
// side.
//
// The table grows in place, some buckets at each insert. Address space for the largest table is reserved at first;
// memory is used as the table grows. Each entry has two candidate buckets of three entries. An insert may move an entry
// to its other bucket; an entry that finds no room is left out.
//
// Owns     its address space. Not the registrations.
// Threads  The caller holds the index lock, except for make_memory_usable(), which asks the kernel for memory and is
//          called without it. Readers read at any time.
// Hook     All functions but insert(), make_memory_usable(), reserve(), the constructor and the destructor.
//
// start_table/S1, start_table/S2 and start_bucket/L1 hold here too.
// vma_start_table/S3  Each entry is in one of its two buckets or is left out. It is in the table twice only while it is
//     moved.
// vma_start_table/S4  When an entry is erased, the date of its last use is written to its registration.
// vma_start_table/S5  What threads remember of the table, with versions of 32 bits, is forgotten before any bucket has
//     changed so often that a version comes again: is_worn() counts the changes of all buckets, and the next miss has
//     it done. So a pool must not hide and show its registrations a billion times between two misses.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_STARTS_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_STARTS_H

#include <algorithm>

#include "base/hit/start_table.h"

namespace pinrail::vma {

class StartTable {
 public:
  static constexpr uint64_t kMostChanges = uint64_t{1} << 29;  // a quarter of those that bring a version back

  // chunks, epoch: host services of these names (component.h). most_changes: tests use fewer.
  StartTable(char* const* chunks, const uint64_t* epoch, uint64_t most_changes = kMostChanges);
  ~StartTable();
  StartTable(const StartTable&) = delete;
  StartTable& operator=(const StartTable&) = delete;

  const pinrail_start_table_t& table() const { return table_; }
  // From now on insert() notes what it inserts (note/N1). Only for a pool that hears of the notes' releases, and has
  // the notes cleared before the table goes (note/N3).
  void lend() { is_lent_ = true; }

  // The registration was inserted into the index, or was removed. thread: as for the operation insert of component.h.
  void insert(const pinrail_thread_t* thread, const pinrail_registration_t* reg);
  void remove(const pinrail_registration_t* reg);
  // The registration stays in the index and was claimed (hide) or is no longer claimed (show). Both may be repeated.
  void hide(const pinrail_registration_t* reg);
  void show(const pinrail_registration_t* reg);

  // has_room() returns whether the next buckets have memory. If not, call make_memory_usable(room()) without the lock,
  // and if it succeeds, note_memory() of the same number with the lock.
  bool has_room() const { return grown(table_.more) + kHeadroom <= room_ || room_ == 0 || room_ == kMaxBuckets; }
  size_t room() const { return room_; }
  bool make_memory_usable(size_t room) const;
  void note_memory(size_t room) { room_ = std::max(room_, doubled(room)); }

  // True after kMostChanges. The caller has all notes and recent requests of the table forgotten.
  bool is_worn() const { return changes_ >= most_changes_; }
  void note_renewal() { changes_ = 0; }

  // Checks vma_start_table/S3, and that each entry agrees with a registration for which is(reg) confirms that it is in
  // the index. Returns a reason if broken, else NULL.
  template <typename Is>
  const char* check(Is&& is) const;

 private:
  using Bucket = start_table::Bucket;
  using Entry = start_table::Entry;
  static constexpr size_t kMaxBuckets = size_t{1} << 20;  // buckets; 64 MiB, for 2.7 million registrations
  static constexpr size_t kInitialBuckets = 512;          // buckets to begin with: 32 KiB
  static constexpr size_t kHeadroom =
      256;  // the number of inserts that may run at the same time, rounded up generously
  static constexpr uint64_t kPlaces = uint64_t{1} << 32;

  static uint64_t hash_of(const pinrail_registration_t* reg) { return start_table::hash_of(span_of(reg).base); }
  static uint64_t hash_of(const Entry* entry) {
    return start_table::hash_of(start_table::base_of(*entry, *start_bucket::extent_of(entry)));
  }
  static size_t doubled(size_t room) { return room == 0 ? 2 * kInitialBuckets : std::min(2 * room, kMaxBuckets); }
  static size_t grown(size_t buckets) { return buckets + buckets / 8; }
  size_t first_bucket(uint64_t hash) const {
    return start_table::size_of(table_).bucket_of(start_table::first_place(hash));
  }
  size_t second_bucket(uint64_t hash) const {
    return start_table::size_of(table_).bucket_of(start_table::second_place(hash));
  }
  bool is_bucket_of(size_t bucket, uint64_t hash) const {
    return first_bucket(hash) == bucket || second_bucket(hash) == bucket;
  }
  size_t other_bucket(size_t bucket, uint64_t hash) const {
    return first_bucket(hash) == bucket ? second_bucket(hash) : first_bucket(hash);
  }
  Entry* add(const pinrail_registration_t* reg);
  void move(Entry* to, Entry* from);
  Entry* free_entry_in(size_t bucket, Entry* other = nullptr);
  Entry* find_free_entry(uint64_t hash);
  __attribute__((noinline)) Entry* displace_entry(size_t bucket, int moves);
  void erase(Entry* entry);
  bool is_crowded() const;
  void grow();
  __attribute__((noinline)) void redistribute_bucket();

  // What every hit reads; written only while the table grows.
  alignas(64) pinrail_start_table_t table_;
  const uint64_t* epoch_;
  const uint64_t most_changes_;
  // What each change writes.
  alignas(64) uint64_t changes_ = 0;  // of buckets, since what was remembered was forgotten
  size_t entries_ = 0;                // entries in the table
  size_t room_ = 0;                   // buckets that have memory
  size_t old_buckets_left_ = 0;       // while the table grows: buckets from this one on have been moved
  bool is_lent_ = false;
  Bucket only_bucket_ = {};  // the only bucket if no address space could be reserved
};

template <typename Is>
const char* StartTable::check(Is&& is) const {
  size_t entries = 0;
  for (size_t bucket = 0; bucket < std::max(room_, size_t{1}); ++bucket) {
    if (start_bucket::is_changing(table_.buckets[bucket].version)) return "a bucket of starts is not whole";
    for (const Entry& entry : table_.buckets[bucket].pages) {
      const uint32_t extent = *start_bucket::extent_of(&entry);
      if (extent == 0) continue;
      ++entries;
      const uint64_t incarnation = *start_bucket::incarnation_of(&entry);
      const pinrail_registration_t* reg = arena::numbered(table_.chunks, start_table::number_of(incarnation));
      if (!is(reg)) return "a start names a registration that is not in the index";
      if (start_table::base_of(entry, extent) != span_of(reg).base ||
          start_table::length_of(extent) >> start_table::kPageShift != reg->length >> start_table::kPageShift ||
          (extent & start_table::kAccess) != start_table::access_of(reg->rights | reg->traits) ||
          start_table::generation_of(incarnation) != generation_of(reg))
        return "a start tells something that is not true";
      if (!is_bucket_of(bucket, hash_of(&entry))) return "a start stands in a wrong bucket";
    }
  }
  return entries == entries_ ? nullptr : "the count of starts is wrong";
}

}  // namespace pinrail::vma

#endif
