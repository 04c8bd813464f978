// SPDX-License-Identifier: BSD-3-Clause
// vma_starts.h - the table of starts, as the index keeps it; base/core/starts.h says how it is read.
//
// It grows in place, some lines at each insert: address space for the largest table is reserved at first, memory is
// used as the table grows. Each entry has two homes to choose from, lines of two, and makes room for another one by
// moving from the one to the other; what finds no room is left out.
//
// Owns     its address space. Not the registrations.
// Threads  all functions one at a time (the index lock), but for make_room(), which asks the kernel for memory and so
//          is called without; readers at any time.
//
// S1-S4 of base/core/starts.h, and
// S5  Each entry is in one of its two home lines, or not at all; never twice but while it moves.
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

  void insert(const pinrail_registration_t* reg);
  void remove(const pinrail_registration_t* reg);

  // Whether memory for the next lines is there; if not: make_room(room()), and if that succeeds room_made() of it.
  bool has_room() const { return grown(table_.more) + kAhead <= room_ || room_ == 0 || room_ == kMost; }
  size_t room() const { return room_; }
  bool make_room(size_t room) const;
  void room_made(size_t room) { room_ = std::max(room_, doubled(room)); }

  // Checks S5 and that each entry tells what is true of a registration that is(reg) agrees to be in the index; a reason
  // if broken, else NULL.
  template <typename Is>
  const char* check(Is&& is) const;

 private:
  using Entry = starts::Entry;
  static constexpr size_t kMost = size_t{1} << 20;  // lines; 64 MiB, for 1.5 million registrations
  static constexpr size_t kLineBytes = starts::kEntries * sizeof(Entry);
  static constexpr size_t kFirst = 1024;  // lines to begin with: 64 KiB
  static constexpr size_t kAhead = 256;   // inserts that may be under way at the same time, and then some
  static constexpr uint64_t kPlaces = uint64_t{1} << 32;

  static uint64_t hash_of(const pinrail_registration_t* reg) { return starts::hash_of(span_of(reg).base); }
  static size_t doubled(size_t room) { return room == 0 ? 2 * kFirst : std::min(2 * room, kMost); }
  static size_t grown(size_t lines) { return lines + lines / 8; }
  size_t first_home(uint64_t hash) const { return starts::line_of(table_, starts::first_place(hash)); }
  size_t second_home(uint64_t hash) const { return starts::line_of(table_, starts::second_place(hash)); }
  bool is_home(size_t line, uint64_t hash) const { return first_home(hash) == line || second_home(hash) == line; }
  size_t other_home(size_t line, uint64_t hash) const {
    return first_home(hash) == line ? second_home(hash) : first_home(hash);
  }
  size_t line_of(const Entry* entry) const { return static_cast<size_t>(entry - table_.entries) / starts::kEntries; }
  Entry* entry_with(size_t line, uint64_t name) const;
  Entry* entry_of(const pinrail_registration_t* reg) const;
  Entry* room_for(uint64_t hash);
  Entry* make_free(size_t line, int moves);
  void put(Entry* entry, const Entry& what);
  void move(Entry* to, Entry* from);
  bool is_crowded() const;
  void grow();
  void grow_line();

  pinrail_starts_t table_;
  size_t room_ = 0;                                        // lines that have memory
  size_t line_ = 0;                                        // while it grows: those from here on have grown
  size_t wanted_ = 0;                                      // registrations that are in, or found no room
  size_t entries_ = 0;                                     // that are in
  alignas(kLineBytes) Entry none_[starts::kEntries] = {};  // all there is if there is no address space to be had
};

template <typename Is>
const char* Starts::check(Is&& is) const {
  size_t entries = 0;
  for (const Entry* entry = table_.entries; entry != table_.entries + starts::kEntries * std::max(room_, size_t{1});
       ++entry) {
    if (entry->name == 0) continue;
    ++entries;
    const pinrail_registration_t* reg = starts::named_by(entry->name);
    if (!is(reg)) return "a start names a registration that is not in the index";
    if ((starts::load(&entry->stamp) & 1) != 0 || entry->base != span_of(reg).base ||
        starts::length_of(entry->life) >> starts::kPageShift != reg->length >> starts::kPageShift ||
        (entry->name & starts::kAccess) != (reg->rights | reg->traits) ||
        starts::generation_of(entry->life) != generation_of(reg))
      return "a start tells something that is not true";
    if (!is_home(line_of(entry), starts::hash_of(entry->base))) return "a start stands in a wrong line";
  }
  return entries == entries_ ? nullptr : "the count of starts is wrong";
}

}  // namespace pinrail::vma

#endif
