// SPDX-License-Identifier: BSD-3-Clause
// The writer's side of the start table. The caller holds the index lock, except in make_memory_usable(), the
// constructor and the destructor. Hook context (remove(), hide() and what they call) or API context.
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

void write_entry(start_table::Entry* entry, const Start& start) {
  const Change change(entry);
  __atomic_store_n(start_bucket::date_of(entry), start.date, __ATOMIC_RELAXED);
  store(start_bucket::incarnation_of(entry), start.incarnation);  // start_bucket/L3
  store(start_bucket::extent_of(entry), start.extent);
  store(entry, start.page);
}

// The page becomes another one: a reader that looks for it in both buckets would take this entry for the other one.
void clear_entry(start_table::Entry* entry) {
  const Change change(entry);
  store(start_bucket::extent_of(entry), uint32_t{0});
  store(entry, ~*entry);
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

StartTable::StartTable(char* const* chunks, const uint64_t* epoch, uint64_t most_changes)
    : table_{&only_bucket_, 1, 1, 0, chunks}, epoch_(epoch), most_changes_(most_changes) {
  char* const memory = reserve(kMaxBuckets * sizeof(Bucket));
  if (memory == nullptr) return;
  table_.buckets = reinterpret_cast<Bucket*>(memory);
  if (make_memory_usable(0)) {
    note_memory(0);
    table_.count = table_.more = kInitialBuckets;
  } else {
    munmap(memory, kMaxBuckets * sizeof(Bucket));
    table_.buckets = &only_bucket_;
  }
}

StartTable::~StartTable() {
  if (table_.buckets != &only_bucket_) munmap(table_.buckets, kMaxBuckets * sizeof(Bucket));
}

// No lock. Makes memory usable for doubled(room) buckets. False if the kernel refuses. The caller then calls
// note_memory().
bool StartTable::make_memory_usable(size_t room) const {
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

// Returns the first free entry of the bucket; otherwise `other`. Branchless, because which one is free cannot be
// predicted.
start_table::Entry* StartTable::free_entry_in(size_t bucket, Entry* other) {
  Entry* const pages = table_.buckets[bucket].pages;
  for (unsigned i = start_bucket::kEntries; i-- > 0;) {
    other = select_if_equal(other, &pages[i], start_bucket::extent_of(&pages[i]), uint32_t{0});
  }
  return other;
}

// The entry is copied before it is erased: readers may see two copies, never none.
void StartTable::move(Entry* to, Entry* from) {
  write_entry(to, {*from, *start_bucket::extent_of(from), *start_bucket::incarnation_of(from),
                   __atomic_load_n(start_bucket::date_of(from), __ATOMIC_RELAXED)});
  clear_entry(from);
  changes_ += 2;
}

// Cuckoo move: frees an entry of a full bucket by moving one to its other bucket, recursively up to `moves` times.
start_table::Entry* StartTable::displace_entry(size_t bucket, int moves) {
  for (Entry& entry : table_.buckets[bucket].pages) {
    const size_t other = other_bucket(bucket, hash_of(&entry));
    if (other == bucket) continue;
    Entry* to = free_entry_in(other);
    if (to == nullptr && moves > 1) to = displace_entry(other, moves - 1);
    Entry* const freed =
        free_entry_in(bucket);  // a move deeper in the recursion may have freed an entry of this bucket
    if (freed != nullptr) return freed;
    if (to == nullptr) continue;
    move(to, &entry);
    return &entry;
  }
  return nullptr;
}

// Returns a free entry in one of the key's two buckets, after cuckoo moves if needed. NULL if that takes too many.
start_table::Entry* StartTable::find_free_entry(uint64_t hash) {
  constexpr int kMoves = 4;
  const size_t first = first_bucket(hash), second = second_bucket(hash);
  Entry* entry = free_entry_in(first, free_entry_in(second));
  if (entry == nullptr) entry = displace_entry(first, kMoves);
  return entry != nullptr ? entry : displace_entry(second, kMoves);
}

// The registration was inserted into the index. It is left out if it is not eligible, is claimed or finds no room.
void StartTable::insert(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (room_ == 0 || !is_eligible(reg)) return;
  grow();
  const Entry* entry = is_takeable(reg) ? add(reg) : nullptr;
  if (entry != nullptr && thread != nullptr && is_lent_) start_table::note_entry(thread, entry, reg);
}

// The registration was removed from the index.
void StartTable::remove(const pinrail_registration_t* reg) {
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
  Entry* const entry = find_free_entry(hash_of(reg));
  if (entry == nullptr) return nullptr;
  write_entry(entry, start_of(reg));
  ++entries_;
  ++changes_;
  return entry;
}

// Erases the registration's entry, if it has one.
void StartTable::hide(const pinrail_registration_t* reg) {
  Entry* const entry = room_ == 0 ? nullptr : start_table::entry_of(table_, reg);
  if (entry != nullptr) erase(entry);
}

// Keeps vma_start_table/S4.
void StartTable::erase(Entry* entry) {
  const uint64_t last_use = start_bucket::last_use(start_bucket::date_of(entry), epoch::load(epoch_));
  touch(arena::numbered(table_.chunks, incarnation::number_of(*start_bucket::incarnation_of(entry))), last_use);
  clear_entry(entry);
  --entries_;
  ++changes_;
}

// The limit is 53 entries for twenty buckets of three: with fewer, nearly every entry finds room in its two buckets,
// and a table of 65,536 entries fits into a cache of 2 MB. A small table can afford more buckets.
bool StartTable::is_crowded() const {
  constexpr size_t kSmall = 8192;
  return table_.more < kSmall ? entries_ >= 2 * table_.more : 20 * entries_ >= 53 * table_.more;
}

// Adds an eighth of the buckets, 64 at a time. So it has grown long before it is crowded again, and readers, which are
// slower while it grows, rarely meet that time.
void StartTable::grow() {
  constexpr int kBucketsPerInsert = 64;
  // old_buckets_left_: the number of old buckets whose entries have not been moved yet.
  if (old_buckets_left_ == 0) {
    if (!is_crowded() || grown(table_.more) > room_) return;
    old_buckets_left_ = table_.count;
    // relaxed: see start_table::size_of().
    __atomic_store_n(&table_.grown, kPlaces, __ATOMIC_RELAXED);
    __atomic_store_n(&table_.more, grown(table_.count), __ATOMIC_RELAXED);
  }
  for (int i = 0; i < kBucketsPerInsert && old_buckets_left_ != 0; ++i) redistribute_bucket();
  if (old_buckets_left_ == 0) __atomic_store_n(&table_.count, table_.more, __ATOMIC_RELAXED);
}

// Redistributes the last old bucket that has not been moved yet: its entries go to their buckets of the larger table.
void StartTable::redistribute_bucket() {
  --old_buckets_left_;
  const uint64_t from = (old_buckets_left_ * kPlaces + table_.count - 1) / table_.count;
  const uint64_t to = table_.grown;
  __atomic_store_n(&table_.grown, from, __ATOMIC_RELAXED);
  for (Entry& entry : table_.buckets[old_buckets_left_].pages) {
    if (*start_bucket::extent_of(&entry) == 0) continue;
    const uint64_t hash = hash_of(&entry);
    const auto moved = [&](uint64_t place) { return place >= from && place < to; };
    const uint64_t place =
        moved(start_table::first_place(hash)) ? start_table::first_place(hash) : start_table::second_place(hash);
    const size_t bucket = start_table::size_of(table_).bucket_of(place);
    if (bucket == old_buckets_left_) continue;
    Entry* room = free_entry_in(bucket);
    if (room == nullptr) room = find_free_entry(hash);
    // A cuckoo move may have moved it already, and another one may have taken its place.
    if (*start_bucket::extent_of(&entry) == 0 || hash_of(&entry) != hash) continue;
    if (room != nullptr) {
      move(room, &entry);
    } else {
      erase(&entry);
    }
  }
}

}  // namespace pinrail::vma
