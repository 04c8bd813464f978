// SPDX-License-Identifier: BSD-3-Clause
// hints.h - a lossy hash table that leads from a hash to the registrations that may have it. Reads and writes take no
// lock.
//
// Owns     the tables that it grew by, until free_tables(). Not the registrations, nor the first table.
// Threads  find() and remember() may run together; free_tables() and fork_reinit() exclude them.
// Context  API. remember() may map memory: its caller holds no lock, because hooks report that event.
//
// An entry is one word: a tag, which is the upper part of a hash, and the number of a registration. The registration
// may be gone, or another one may be in its memory. So find() passes on only what is indexed, with the word that it
// loaded; its caller compares what the registration says of itself, and takes a reference by take() of that word
// (registration/S3). Entries are overwritten and lost without harm, and never removed: the caller asks an authoritative
// index for whatever is not found here.
#ifndef PINRAIL_BASE_HIT_HINTS_H
#define PINRAIL_BASE_HIT_HINTS_H

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail {

class Hints {
 public:
  static constexpr size_t kEntries = 8;  // to a line
  struct alignas(64) Line {
    std::atomic<uint64_t> entries[kEntries];  // 0: free
  };
  static_assert(sizeof(Line) == 64, "one line of memory");

  // lines: zeroed; count: a power of two.
  constexpr Hints(Line* lines, size_t count) : first_{lines, count - 1, nullptr}, current_{&first_} {}

  // Calls try_it(registration, its word) for each that may have the hash, until it returns true. Returns whether it
  // did.
  template <typename Try>
  __attribute__((always_inline)) bool find(char* const* chunks, uint64_t hash, Try&& try_it) const {
    // acquire: pairs with the release store of a new table.
    const Line& line = line_of(*current_.load(std::memory_order_acquire), hash);
    for (const std::atomic<uint64_t>& each : line.entries) {
      const uint64_t entry = each.load(std::memory_order_acquire);  // pairs with remember()
      if (tag_of(entry) != tag_of(hash) || entry == 0) continue;
      pinrail_registration_t* const reg = arena::numbered(chunks, number_of(entry));
      // What is read afterwards belongs to this generation, because the registration was complete when it was indexed.
      const uint64_t word = state::load(reg);
      if ((word & state::kIndexed) != 0 && try_it(reg, word)) return true;
    }
    return false;
  }

  // Enters a registration that the calling thread holds. has_hash(registration, tag): whether the indexed registration
  // has a hash of that tag; an entry for which it has not is overwritten first.
  template <typename HasHash>
  void remember(char* const* chunks, const pinrail_registration_t* reg, uint64_t hash, HasHash&& has_hash) {
    const uint64_t number = arena::number_of(reg);
    if (!arena::is_number(number)) return;
    const Table* const table = current_.load(std::memory_order_acquire);
    const uint64_t entry = tag_of(hash) | number;
    const auto is_current = [&](uint64_t other) {
      const pinrail_registration_t* const old = arena::numbered(chunks, number_of(other));
      return is_indexed(old) && has_hash(old, tag_of(other));
    };
    std::atomic<uint64_t>* const place = place_for(&line_of(*table, hash), entry, hash, is_current);
    // release: the memory of the registration is known by its number before the number is; pairs with find().
    if (place->load(std::memory_order_relaxed) != entry) place->store(entry, std::memory_order_release);
    if (overwritten_.load(std::memory_order_relaxed) > (table->mask + 1) / 2) grow(table);
  }

  // The upper part of a hash, in place.
  static constexpr uint64_t tag_of(uint64_t hash) { return hash >> kNumberBits << kNumberBits; }

  // Unmaps what the table grew by. The table must not be used afterwards.
  void free_tables() {
    for (const Table* table = current_.load(); table != &first_;) {
      const Table* const older = table->older;
      munmap(table->lines, bytes_of(table->mask + 1));
      table = older;
    }
  }

  // In a forked child: a thread of the parent that let the table grow is not there.
  void fork_reinit() { is_growing_.store(false, std::memory_order_relaxed); }

 private:
  struct Table {
    Line* lines;
    uint64_t mask;  // how many lines there are, less one
    const Table* older;
  };
  static constexpr unsigned kNumberBits = 28;  // of an entry; the rest is its tag
  static_assert(arena::kMaxNumber >> kNumberBits == 0, "a number fits");
  static constexpr size_t kMostLines = size_t{1} << 17;  // at most: 8 MiB, for a million
  static constexpr size_t kGrowth = 4;
  static constexpr size_t kHugePage = size_t{2} << 20;

  static constexpr uint64_t number_of(uint64_t entry) { return entry & ((uint64_t{1} << kNumberBits) - 1); }
  static Line& line_of(const Table& table, uint64_t hash) { return table.lines[hash & table.mask]; }
  static constexpr size_t bytes_of(size_t lines) { return lines * sizeof(Line) + sizeof(Table); }

  // The place for an entry: that of its own or of an older registration of the same hash, else one that is free or not
  // current, else one that depends on the hash.
  template <typename IsCurrent>
  std::atomic<uint64_t>* place_for(Line* line, uint64_t entry, uint64_t hash, IsCurrent&& is_current) {
    std::atomic<uint64_t>* free_place = nullptr;
    for (std::atomic<uint64_t>& each : line->entries) {
      const uint64_t other = each.load(std::memory_order_acquire);  // as in find(): is_current() reads its memory
      if (other == 0) {
        if (free_place == nullptr) free_place = &each;
      } else if (tag_of(other) == tag_of(entry) && (other == entry || !is_current(other))) {
        return &each;
      }
    }
    if (free_place != nullptr) return free_place;
    const size_t first = hash >> kNumberBits;
    for (size_t i = 0; i < kEntries; ++i) {
      std::atomic<uint64_t>* const each = &line->entries[(first + i) % kEntries];
      if (!is_current(each->load(std::memory_order_acquire))) return each;
    }
    overwritten_.fetch_add(1, std::memory_order_relaxed);  // relaxed: when the table grows is a matter of speed alone
    return &line->entries[first % kEntries];
  }

  // An empty table of more lines. The old one stays, because threads may be reading it; all old ones together are
  // smaller. Without memory the table stays as it is.
  void grow(const Table* from) {
    if (is_growing_.exchange(true, std::memory_order_acquire)) return;
    const size_t lines = (from->mask + 1) * kGrowth;
    const bool is_wanted = current_.load(std::memory_order_relaxed) == from && lines <= kMostLines;
    void* const memory =
        is_wanted ? mmap(nullptr, bytes_of(lines), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                  : MAP_FAILED;
    if (memory != MAP_FAILED) {
      if (lines * sizeof(Line) >= kHugePage) madvise(memory, lines * sizeof(Line), MADV_HUGEPAGE);  // best effort
      auto* const at = static_cast<Line*>(memory);
      // release: the table is complete before a reader has it.
      current_.store(new (at + lines) Table{at, lines - 1, from}, std::memory_order_release);
    }
    overwritten_.store(0, std::memory_order_relaxed);
    is_growing_.store(false, std::memory_order_release);
  }

  const Table first_;
  std::atomic<const Table*> current_;
  std::atomic<uint64_t> overwritten_{0};  // entries of registrations that were cached still, since the table grew last
  std::atomic<bool> is_growing_{false};
};

}  // namespace pinrail

#endif
