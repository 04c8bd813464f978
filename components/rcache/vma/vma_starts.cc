// SPDX-License-Identifier: BSD-3-Clause
#include "components/rcache/vma/vma_starts.h"

#include <sys/mman.h>

namespace pinrail::vma {
namespace {

void store(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);  // pairs with starts::load()
}

// relaxed: readers add epochs to it, no more.
uint64_t version_of(const starts::Entry* entry) {
  return __atomic_load_n(&entry->stamp, __ATOMIC_RELAXED) & starts::kVersions;
}

// From now on what is read of the entry is nothing.
void clear(starts::Entry* entry) {
  // The version first, the rest behind it, for it is stored with release as well.
  store(&entry->stamp, version_of(entry) | 1);
  store(&entry->base, 0);
  store(&entry->name, 0);
}

bool is_eligible(const pinrail_registration_t* reg) {
  return (state::load(reg) & state::kPerThread) != 0 && reg->length < starts::kMostLength &&
         reg->length >= size_t{1} << starts::kPageShift && reinterpret_cast<uintptr_t>(reg) <= starts::kMostAddress &&
         reg->base != nullptr;
}

}  // namespace

Starts::Starts() {
  table_ = {none_, 1, 1, 0};
  void* memory = mmap(nullptr, kMost * kLineBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  table_.entries = static_cast<Entry*>(memory);
  if (make_room(0)) {
    room_made(0);
    table_.count = table_.more = kFirst;
  } else {
    munmap(memory, kMost * kLineBytes);
    table_.entries = none_;
  }
}

Starts::~Starts() {
  if (table_.entries != none_) munmap(table_.entries, kMost * kLineBytes);
}

bool Starts::make_room(size_t room) const {
  constexpr size_t kLarge = size_t{8} << 20;
  Entry* const first = table_.entries + starts::kEntries * room;
  const size_t bytes = (doubled(room) - room) * kLineBytes;
  if (mprotect(first, bytes, PROT_READ | PROT_WRITE) != 0) return false;
  // A wish: large tables are looked at all over, and small pages cost a walk each time. Not for smaller ones: the part
  // of a huge page that is not used yet would be much of them.
  if (bytes >= kLarge) madvise(first, bytes, MADV_HUGEPAGE);
  return true;
}

// What a reader may do to an entry meanwhile is to write an epoch into its stamp: then that is lost, and somebody looks
// once more.
void Starts::put(Entry* entry, const Entry& what) {
  store(&entry->base, what.base);
  store(&entry->name, what.name);
  store(&entry->life, what.life);
  store(&entry->stamp, ((version_of(entry) | 1) + 1) & starts::kVersions);
}

// There is one copy too many meanwhile, not one too few.
void Starts::move(Entry* to, Entry* from) {
  put(to, *from);
  clear(from);
}

// The entry of the line that has the name; 0: a free one. NULL if there is none.
starts::Entry* Starts::entry_with(size_t line, uint64_t name) const {
  Entry* const first = table_.entries + starts::kEntries * line;
  for (Entry* entry = first; entry != first + starts::kEntries; ++entry) {
    if (entry->name == name) return entry;
  }
  return nullptr;
}

// Moves one of a full line to its other home, where another one may have to move first, and so on.
starts::Entry* Starts::make_free(size_t line, int moves) {
  for (size_t i = 0; i < starts::kEntries; ++i) {
    Entry* const entry = table_.entries + starts::kEntries * line + i;
    const size_t other = other_home(line, starts::hash_of(entry->base));
    if (other == line) continue;
    Entry* to = entry_with(other, 0);
    if (to == nullptr && moves > 1) to = make_free(other, moves - 1);
    Entry* const freed = entry_with(line, 0);  // by a move of somebody else, in a circle
    if (freed != nullptr) return freed;
    if (to == nullptr) continue;
    move(to, entry);
    return entry;
  }
  return nullptr;
}

// An entry in one of the homes, made free if need be; NULL if that takes too many moves.
starts::Entry* Starts::room_for(uint64_t hash) {
  constexpr int kMoves = 5;
  for (const size_t home : {first_home(hash), second_home(hash)}) {
    Entry* const entry = entry_with(home, 0);
    if (entry != nullptr) return entry;
  }
  Entry* const entry = make_free(first_home(hash), kMoves);
  return entry != nullptr ? entry : make_free(second_home(hash), kMoves);
}

namespace {

starts::Entry entry_for(const pinrail_registration_t* reg) {
  return {span_of(reg).base, reinterpret_cast<uintptr_t>(reg) << starts::kNameShift | reg->rights | reg->traits,
          reg->length >> starts::kPageShift << starts::kLengthShift | generation_of(reg) >> state::kGenerationShift, 0};
}

}  // namespace

void Starts::insert(const pinrail_registration_t* reg) {
  if (room_ == 0 || !is_eligible(reg)) return;
  ++wanted_;
  grow();
  const uint64_t hash = hash_of(reg);
  Entry* const entry = room_for(hash);
  if (entry == nullptr) return;
  put(entry, entry_for(reg));
  ++entries_;
}

starts::Entry* Starts::entry_of(const pinrail_registration_t* reg) const {
  const uint64_t hash = hash_of(reg);
  const uint64_t name = entry_for(reg).name;
  Entry* const entry = entry_with(first_home(hash), name);
  return entry != nullptr ? entry : entry_with(second_home(hash), name);
}

void Starts::remove(const pinrail_registration_t* reg) {
  if (room_ == 0 || !is_eligible(reg)) return;
  --wanted_;
  Entry* const entry = entry_of(reg);
  if (entry == nullptr) return;
  clear(entry);
  --entries_;
}

// 17 entries for ten lines: hardly any finds both its homes full then, and a table of 65,536 nearly fits into a cache
// of 2 MB. A small table can afford more lines.
bool Starts::is_crowded() const {
  constexpr size_t kSmall = 8192;
  return table_.more < kSmall ? wanted_ > table_.more : 10 * wanted_ > 17 * table_.more;
}

// An eighth more, 32 lines at a time: it is done long before it is crowded again, and readers, who take longer while it
// grows, seldom meet it then.
void Starts::grow() {
  constexpr int kLines = 32;
  if (line_ == 0) {
    if (!is_crowded() || grown(table_.more) > room_) return;
    line_ = table_.count;
    // relaxed: see starts::line_of().
    __atomic_store_n(&table_.grown, kPlaces, __ATOMIC_RELAXED);
    __atomic_store_n(&table_.more, grown(table_.count), __ATOMIC_RELAXED);
  }
  for (int i = 0; i < kLines && line_ != 0; ++i) grow_line();
  if (line_ == 0) __atomic_store_n(&table_.count, table_.more, __ATOMIC_RELAXED);
}

// The last line that has not grown yet: what stands in it moves to where its places are among more lines.
void Starts::grow_line() {
  --line_;
  const uint64_t from = (line_ * kPlaces + table_.count - 1) / table_.count;
  const uint64_t to = table_.grown;
  Entry* const first = table_.entries + starts::kEntries * line_;
  __atomic_store_n(&table_.grown, from, __ATOMIC_RELAXED);
  for (Entry* entry = first; entry != first + starts::kEntries; ++entry) {
    if (entry->name == 0) continue;
    const uint64_t hash = starts::hash_of(entry->base);
    const auto moved = [&](uint64_t place) { return place >= from && place < to; };
    const uint64_t place = moved(starts::first_place(hash)) ? starts::first_place(hash) : starts::second_place(hash);
    const size_t line = starts::line_of(table_, place);
    if (line == line_) continue;
    Entry* room = entry_with(line, 0);
    if (room == nullptr) room = room_for(hash);
    if (entry->name == 0) continue;  // it moved itself
    if (room != nullptr) {
      move(room, entry);
    } else {
      clear(entry);
      --entries_;
    }
  }
}

}  // namespace pinrail::vma
