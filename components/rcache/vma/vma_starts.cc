// SPDX-License-Identifier: BSD-3-Clause
#include "components/rcache/vma/vma_starts.h"

#include <sys/mman.h>

namespace pinrail::vma {
namespace {

void put(uint64_t* place, uint64_t way) {
  __atomic_store_n(place, way, __ATOMIC_RELEASE);
}  // pairs with starts::load()

}  // namespace

Starts::Starts() {
  void* memory = mmap(nullptr, kMost * kGroupBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  ways_ = static_cast<uint64_t*>(memory);
  if (make_room(0)) {
    room_made(0);
    table_.ways = ways_;
  } else {
    munmap(memory, kMost * kGroupBytes);
    ways_ = none_;
  }
}

Starts::~Starts() {
  if (ways_ != none_) munmap(ways_, kMost * kGroupBytes);
}

bool Starts::make_room(size_t room) const {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = (grown(room) - room) * kGroupBytes;
  if (mprotect(group(room), bytes, PROT_READ | PROT_WRITE) != 0) return false;
  // A wish: large tables are looked at all over, and small pages cost a walk each time.
  if (bytes >= kHugePage) madvise(group(room), bytes, MADV_HUGEPAGE);
  return true;
}

// The place in one of the homes that holds the way; NULL if none does.
uint64_t* Starts::place_with(uint64_t hash, uint64_t way) {
  for (const size_t home : {starts::first_home(table_, hash), starts::second_home(table_, hash)}) {
    for (uint64_t* place = group(home); place != group(home + 1); ++place) {
      if (*place == way) return place;
    }
  }
  return nullptr;
}

// Seven entries for four groups: hardly any finds both its homes full then, and one in eight stands in its second one.
// A small table can afford to be twice as large, and then nearly all are found at once.
bool Starts::is_crowded() const {
  constexpr size_t kSmall = 8192;
  return table_.count < kSmall ? entries_ > table_.count : 4 * entries_ > 7 * table_.count;
}

void Starts::insert(pinrail_registration_t* reg) {
  if (room_ == 0 || (state::load(reg) & state::kPerThread) == 0) return;
  const uint64_t hash = hash_of(reg);
  uint64_t* place = place_with(hash, 0);
  if (place != nullptr) {
    put(place, way_of(reg, hash));
    ++entries_;
  }
  if (is_crowded()) grow();
}

void Starts::remove(const pinrail_registration_t* reg) {
  const uint64_t hash = hash_of(reg);
  uint64_t* place = place_with(hash, way_of(reg, hash));
  if (place == nullptr) return;
  put(place, 0);
  --entries_;
}

// One group more: what of the group that served its home, too, is at home there now, moves.
void Starts::grow() {
  const size_t made = table_.count;
  if (made == room_) return;  // no memory for more: what finds its homes full is in the tree alone
  const size_t mask = made > table_.mask ? 2 * table_.mask + 1 : table_.mask;
  __atomic_store_n(&table_.mask, mask, __ATOMIC_RELAXED);  // relaxed: see starts::home_of()
  __atomic_store_n(&table_.count, made + 1, __ATOMIC_RELAXED);
  const size_t from = made & (mask >> 1);
  uint64_t* into = group(made);
  for (uint64_t* place = group(from); place != group(from + 1); ++place) {
    const uint64_t way = *place;
    if (way == 0 || is_home(from, hash_of(starts::named_by(way)))) continue;
    put(place, 0);
    put(into++, way);
  }
}

}  // namespace pinrail::vma
