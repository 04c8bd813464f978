// SPDX-License-Identifier: BSD-3-Clause
// The writer's side of the start table. The caller holds the index lock, except in make_room(), the constructor and the
// destructor. Hook context (remove(), hide() and what they call) or API context.
#include "components/rcache/vma/vma_start_table.h"

#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1; older kernels refuse it
#endif

namespace pinrail::vma {
namespace {

// release: pairs with the acquire loads of start_bucket.h.
template <typename Word>
void store(Word* word, Word value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

// Keeps start_bucket/L1: the bucket's version is odd while this object exists.
class Change {
 public:
  explicit Change(const start_table::Entry* entry) : version_(&start_bucket::bucket_of(entry)->version) { step(); }
  ~Change() { step(); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  // release is enough for both steps: all other stores are release as well, so they stay behind the first step.
  void step() { store(version_, *version_ + 1); }

  uint32_t* version_;
};

// The contents of an entry.
struct Start {
  start_table::Entry page;
  uint32_t extent;
  uint64_t incarnation;
  uint32_t date;
};

void put(start_table::Entry* entry, const Start& start) {
  const Change change(entry);
  __atomic_store_n(start_bucket::date_of(entry), start.date, __ATOMIC_RELAXED);
  store(start_bucket::incarnation_of(entry), start.incarnation);  // start_bucket/L3
  store(start_bucket::extent_of(entry), start.extent);
  store(entry, start.page);
}

void forget(start_table::Entry* entry) {
  const Change change(entry);
  store(start_bucket::extent_of(entry), uint32_t{0});
}

// The entry is copied before it is erased: readers may see two copies, never none.
void move(start_table::Entry* to, start_table::Entry* from) {
  put(to, {*from, *start_bucket::extent_of(from), *start_bucket::incarnation_of(from),
           __atomic_load_n(start_bucket::date_of(from), __ATOMIC_RELAXED)});
  forget(from);
}

Start start_of(const pinrail_registration_t* reg) {
  const uintptr_t base = span_of(reg).base;
  const auto pages = static_cast<uint32_t>(reg->length >> start_table::kPageShift);
  return {start_table::page_of(base),
          static_cast<uint32_t>(base >> start_table::kHighPageShift) << start_table::kStartAt |
              pages << start_table::kLengthAt | start_table::kUsed | start_table::access_of(reg->rights | reg->traits),
          incarnation::of(arena::number_of(reg), generation_of(reg)), epoch::short_date(last_use(reg))};
}

// Returns whether the registration may be in the table at all: counted per thread, page-aligned, at least a page long,
// and not too long.
bool is_eligible(const pinrail_registration_t* reg) {
  return (state::load(reg) & state::kPerThread) != 0 && reg->length < start_table::kMaxLength &&
         reg->length >= size_t{1} << start_table::kPageShift && start_table::is_start(span_of(reg).base) &&
         reg->base != nullptr && arena::is_number(arena::number_of(reg));
}

// False for a claimed registration: the evictor hides it after it has taken the index lock (start_table/S1).
bool is_takeable(const pinrail_registration_t* reg) {
  return (state::load(reg) & (state::kIndexed | state::kEvictClaim)) == state::kIndexed;
}

constexpr size_t kHugePage = size_t{2} << 20;

// Reserves address space, aligned to a huge page. NULL if there is none.
char* reserve(size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const first = static_cast<char*>(memory);
  const size_t before = -reinterpret_cast<uintptr_t>(first) & (kHugePage - 1);
  if (before != 0) munmap(first, before);
  munmap(first + before + bytes, kHugePage - before);
  return first + before;
}

}  // namespace

StartTable::StartTable(char* const* chunks, const uint64_t* epoch) : table_{&none_, 1, 1, 0, chunks}, epoch_(epoch) {
  char* const memory = reserve(kMost * sizeof(Bucket));
  if (memory == nullptr) return;
  table_.buckets = reinterpret_cast<Bucket*>(memory);
  if (make_room(0)) {
    room_made(0);
    table_.count = table_.more = kFirst;
  } else {
    munmap(memory, kMost * sizeof(Bucket));
    table_.buckets = &none_;
  }
}

StartTable::~StartTable() {
  if (table_.buckets != &none_) munmap(table_.buckets, kMost * sizeof(Bucket));
}

// No lock. Makes memory usable for doubled(room) buckets. False if the kernel refuses. The caller then calls
// room_made().
bool StartTable::make_room(size_t room) const {
  Bucket* const first = table_.buckets + room;
  const size_t bytes = doubled(room) * sizeof(Bucket);
  if (mprotect(first, bytes - room * sizeof(Bucket), PROT_READ | PROT_WRITE) != 0) return false;
  // Requests only. A large table is read at random places: small pages would cost a page walk for each, and some of
  // them would fall into the same part of the processor's cache. For smaller tables a huge page would be too much
  // memory.
  if (bytes >= kHugePage) madvise(table_.buckets, bytes, MADV_HUGEPAGE);
  if (bytes == kHugePage) madvise(table_.buckets, bytes, MADV_COLLAPSE);  // replaces the small pages that it has so far
  return true;
}

// Returns a free entry of the bucket, or NULL.
start_table::Entry* StartTable::free_in(size_t bucket) {
  for (Entry& entry : table_.buckets[bucket].pages) {
    if (*start_bucket::extent_of(&entry) == 0) return &entry;
  }
  return nullptr;
}

// Cuckoo move: frees an entry of a full bucket by moving one to its other bucket, recursively up to `moves` times.
start_table::Entry* StartTable::make_free(size_t bucket, int moves) {
  for (Entry& entry : table_.buckets[bucket].pages) {
    const size_t other = other_home(bucket, hash_of(&entry));
    if (other == bucket) continue;
    Entry* to = free_in(other);
    if (to == nullptr && moves > 1) to = make_free(other, moves - 1);
    Entry* const freed = free_in(bucket);  // a move deeper in the recursion may have freed an entry of this bucket
    if (freed != nullptr) return freed;
    if (to == nullptr) continue;
    move(to, &entry);
    return &entry;
  }
  return nullptr;
}

// Returns a free entry in one of the key's two buckets, after cuckoo moves if needed. NULL if that takes too many.
start_table::Entry* StartTable::room_for(uint64_t hash) {
  constexpr int kMoves = 4;
  for (const size_t bucket : {first_home(hash), second_home(hash)}) {
    Entry* const entry = free_in(bucket);
    if (entry != nullptr) return entry;
  }
  Entry* const entry = make_free(first_home(hash), kMoves);
  return entry != nullptr ? entry : make_free(second_home(hash), kMoves);
}

// The registration was inserted into the index. It is left out if it is not eligible, is claimed or finds no room.
void StartTable::insert(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (room_ == 0 || !is_eligible(reg)) return;
  ++wanted_;
  grow();
  const Entry* entry = is_takeable(reg) ? add(reg) : nullptr;
  if (entry != nullptr && thread != nullptr) start_table::note_entry(thread, entry, reg);
}

// The registration was removed from the index.
void StartTable::remove(const pinrail_registration_t* reg) {
  if (room_ == 0 || !is_eligible(reg)) return;
  --wanted_;
  // An entry that died claimed was already hidden by the evictor.
  constexpr uint64_t kEvicted = state::kDead | state::kEvictClaim;
  if ((state::load(reg) & kEvicted) != kEvicted) hide(reg);
}

// The registration is no longer claimed: puts it back unless it is in the table.
void StartTable::show(const pinrail_registration_t* reg) {
  if (room_ == 0 || !is_eligible(reg) || !is_takeable(reg)) return;
  if (start_table::entry_of(table_, reg) != nullptr) return;
  add(reg);
}

// Returns NULL if there is no room for the entry.
start_table::Entry* StartTable::add(const pinrail_registration_t* reg) {
  Entry* const entry = room_for(hash_of(reg));
  if (entry == nullptr) return nullptr;
  put(entry, start_of(reg));
  ++entries_;
  return entry;
}

// Erases the registration's entry, if it has one.
void StartTable::hide(const pinrail_registration_t* reg) {
  Entry* const entry = room_ == 0 ? nullptr : start_table::entry_of(table_, reg);
  if (entry != nullptr) leave(entry);
}

// Keeps vma_start_table/S4.
void StartTable::leave(Entry* entry) {
  const uint64_t last_use = start_bucket::last_use(start_bucket::date_of(entry), epoch::load(epoch_));
  touch(arena::numbered(table_.chunks, incarnation::number_of(*start_bucket::incarnation_of(entry))), last_use);
  forget(entry);
  --entries_;
}

// The limit is 53 entries for twenty buckets of three: with fewer, nearly every entry finds room in its two buckets,
// and a table of 65,536 entries fits into a cache of 2 MB. A small table can afford more buckets.
bool StartTable::is_crowded() const {
  constexpr size_t kSmall = 8192;
  return table_.more < kSmall ? wanted_ > 2 * table_.more : 20 * wanted_ > 53 * table_.more;
}

// Adds an eighth of the buckets, 64 at a time. So it has grown long before it is crowded again, and readers, which are
// slower while it grows, rarely meet that time.
void StartTable::grow() {
  constexpr int kLines = 64;
  // line_: the number of old buckets whose entries have not been moved yet.
  if (line_ == 0) {
    if (!is_crowded() || grown(table_.more) > room_) return;
    line_ = table_.count;
    // relaxed: see start_table::size_of().
    __atomic_store_n(&table_.grown, kPlaces, __ATOMIC_RELAXED);
    __atomic_store_n(&table_.more, grown(table_.count), __ATOMIC_RELAXED);
  }
  for (int i = 0; i < kLines && line_ != 0; ++i) grow_line();
  if (line_ == 0) __atomic_store_n(&table_.count, table_.more, __ATOMIC_RELAXED);
}

// Redistributes the last old bucket that has not been moved yet: its entries go to their buckets of the larger table.
void StartTable::grow_line() {
  --line_;
  const uint64_t from = (line_ * kPlaces + table_.count - 1) / table_.count;
  const uint64_t to = table_.grown;
  __atomic_store_n(&table_.grown, from, __ATOMIC_RELAXED);
  for (Entry& entry : table_.buckets[line_].pages) {
    if (*start_bucket::extent_of(&entry) == 0) continue;
    const uint64_t hash = hash_of(&entry);
    const auto moved = [&](uint64_t place) { return place >= from && place < to; };
    const uint64_t place =
        moved(start_table::first_place(hash)) ? start_table::first_place(hash) : start_table::second_place(hash);
    const size_t bucket = start_table::size_of(table_).bucket_of(place);
    if (bucket == line_) continue;
    Entry* room = free_in(bucket);
    if (room == nullptr) room = room_for(hash);
    if (*start_bucket::extent_of(&entry) == 0) continue;  // a cuckoo move has moved it already
    if (room != nullptr) {
      move(room, &entry);
    } else {
      leave(&entry);
    }
  }
}

}  // namespace pinrail::vma
