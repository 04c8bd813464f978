// SPDX-License-Identifier: BSD-3-Clause
// vma_starts.h - the table of starts, as the index keeps it; base/core/starts.h says how it is read.
//
// It grows in place, a group at a time (linear hashing): address space for the largest table is reserved at first,
// memory is used as the table grows. Each entry has two homes to choose from, which fills the groups evenly; one that
// finds both full is left out.
//
// Owns     its address space. Not the registrations.
// Threads  all functions one at a time (the index lock), but for make_room(), which asks the kernel for memory and so
// is
//          called without; readers at any time.
//
// S1-S3 of base/core/starts.h, and
// S4  Each entry is in one of its two home groups, or not at all.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_STARTS_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_STARTS_H

#include <algorithm>

#include "base/core/starts.h"

namespace pinrail::vma {

class Starts {
 public:
  Starts();
  ~Starts();
  Starts(const Starts&) = delete;
  Starts& operator=(const Starts&) = delete;

  const pinrail_starts_t& table() const { return table_; }

  void insert(pinrail_registration_t* reg);
  void remove(const pinrail_registration_t* reg);

  // Whether memory for the next few groups is there; if not: make_room(room()), and if that succeeds room_made() of it.
  bool has_room() const { return table_.count + kAhead <= room_ || room_ == 0 || room_ == kMost; }
  size_t room() const { return room_; }
  bool make_room(size_t room) const;
  void room_made(size_t room) { room_ = std::max(room_, grown(room)); }

  // Checks S4 and that each way names what is(reg) agrees to be in the index; a reason if broken, else NULL.
  template <typename Is>
  const char* check(Is&& is) const;

 private:
  static constexpr size_t kMost = size_t{1} << starts::kMostBits;  // groups; 32 MiB; 1.8 million registrations
  static constexpr size_t kGroupBytes = starts::kWays * sizeof(uint64_t);
  static constexpr size_t kFirst = 2048;  // groups for which memory is asked at first: 64 KiB; then twice that
  static constexpr size_t kAhead = 256;   // inserts that may be under way at the same time, and then some

  static uint64_t hash_of(const pinrail_registration_t* reg) { return starts::hash_of(span_of(reg).base); }
  static uint64_t way_of(const pinrail_registration_t* reg, uint64_t hash) {
    return reinterpret_cast<uintptr_t>(reg) | (hash & ~starts::kAddressMask);
  }
  static size_t grown(size_t room) { return room == 0 ? kFirst : std::min(2 * room, kMost); }
  bool is_home(size_t group, uint64_t hash) const {
    return starts::first_home(table_, hash) == group || starts::second_home(table_, hash) == group;
  }
  uint64_t* group(size_t i) const { return ways_ + starts::kWays * i; }
  uint64_t* place_with(uint64_t hash, uint64_t way);
  bool is_crowded() const;
  void grow();

  uint64_t* ways_ = none_;
  pinrail_starts_t table_ = {none_, 0, 1};
  size_t room_ = 0;                                         // groups that have memory
  size_t entries_ = 0;                                      // registrations that are in
  alignas(kGroupBytes) uint64_t none_[starts::kWays] = {};  // all there is if there is no address space to be had
};

template <typename Is>
const char* Starts::check(Is&& is) const {
  size_t entries = 0;
  for (size_t i = 0; i < starts::kWays * table_.count; ++i) {
    if (ways_[i] == 0) continue;
    ++entries;
    const pinrail_registration_t* reg = starts::named_by(ways_[i]);
    if (!is(reg)) return "a start names a registration that is not in the index";
    const uint64_t hash = hash_of(reg);
    if (!is_home(i / starts::kWays, hash) || way_of(reg, hash) != ways_[i]) return "a start stands in a wrong group";
  }
  return entries == entries_ ? nullptr : "the count of starts is wrong";
}

}  // namespace pinrail::vma

#endif
