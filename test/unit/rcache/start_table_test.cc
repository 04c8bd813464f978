// SPDX-License-Identifier: BSD-3-Clause
// The table of starts beside the tree of the index: it names what the index has, and nothing else.
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/hit/recent.h"
#include "test/unit/rcache/index_under_test.h"

namespace pinrail::vma {
namespace {

// What is counted per thread is found by its start, whatever its size, and by any address in it.
TEST_F(IndexTest, starts_and_insides_are_found_of_registrations_that_are_counted_per_thread) {
  constexpr size_t kMany = 20000;
  Index index(false, arena::chunks(), thread::epoch_word());
  std::vector<pinrail_registration_t*> regs;
  for (size_t i = 0; i < kMany; ++i) {
    regs.push_back(make(0x10000000 + i * 7 * kPage, (1 + i % 6) * kPage - i % 3, 3, 0, 0, PINRAIL_COUNTING_THREADS));
    ASSERT_TRUE(put(index, regs.back()).ok());
  }
  EXPECT_EQ(index.check(), nullptr) << index.check();
  for (const pinrail_registration_t* reg : regs) {
    const Span span = span_of(reg);
    ASSERT_EQ(look(index, span.base, span.length(), 1), reg);
    ASSERT_EQ(look(index, span.base, 1, 3), reg);
    ASSERT_EQ(look(index, span.base + 1, span.length() - 1, 2), reg);
    ASSERT_EQ(look(index, span.base, span.length() + 1, 1), nullptr);
    ASSERT_EQ(look(index, span.base, 1, 4), nullptr);
    ASSERT_EQ(look(index, span.base, 1, 1, PINRAIL_TRAIT_ON_DEMAND), nullptr);
  }
  for (size_t i = 0; i < kMany; i += 2) ASSERT_TRUE(index.remove(regs[i]).ok());
  for (size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(look(index, span_of(regs[i]).base, 1, 1), i % 2 == 0 ? nullptr : regs[i]);
  }
  EXPECT_EQ(index.check(), nullptr) << index.check();
  index.invalidate_hook({0, UINTPTR_MAX}, Left::visit, &left_);
  EXPECT_EQ(left_.regs.size(), kMany / 2);
  for (const pinrail_registration_t* reg : regs) ASSERT_EQ(look(index, span_of(reg).base, 1, 1), nullptr);
}

TEST_F(IndexTest, an_exact_index_finds_a_start_only_with_its_length_and_access) {
  Index index(true, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, 0x3000, 3, 0, 0, PINRAIL_COUNTING_THREADS);
  ASSERT_TRUE(put(index, reg).ok());
  EXPECT_EQ(look(index, 0x10000, 0x3000, 3), reg);
  EXPECT_EQ(look(index, 0x10000, 0x3000, 1), nullptr);
  EXPECT_EQ(look(index, 0x10000, 0x2fff, 3), nullptr);
}

// vma_start_table/S5: what threads remember of the table is to be forgotten before a version comes again.
TEST_F(IndexTest, a_table_that_changed_often_is_renewed_once) {
  constexpr uint64_t kMost = 8;
  Index index(false, arena::chunks(), thread::epoch_word(), {}, kMost);
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t changes = 0; changes < kMost; changes += 2) {
      EXPECT_FALSE(index.takes_renewal()) << round << ", " << changes << " changes";
      state::set(reg, state::kPerThread | state::kIndexed);
      ASSERT_TRUE(put(index, reg).ok());
      ASSERT_TRUE(index.remove(reg).ok());
    }
    ASSERT_TRUE(put(index, reg).ok());
    EXPECT_TRUE(index.takes_renewal()) << round;
    EXPECT_FALSE(index.takes_renewal()) << round;
    ASSERT_TRUE(index.remove(reg).ok());
  }
}

// Threads may hit, and the table may grow, while what they remember is being forgotten.
TEST_F(IndexTest, what_is_remembered_is_forgotten_while_a_table_grows) {
  Index index(false, arena::chunks(), thread::epoch_word(), {}, 100);
  std::atomic<bool> is_over{false};
  std::thread hits([&] {
    pinrail_thread_t* const thread = thread::current();
    start_table::Found found;
    pinrail_handle_t handle;
    const void* pool = nullptr;
    while (!is_over) {
      if (!start_table::look_up(starts_of(index), 0x10000, 0, kPage, 1, &found)) continue;
      if (!start_table::take(thread, found, &index, &handle)) continue;
      recent::remember(thread, 0x10000, &index, 1, found, nullptr);
      if (note::release(thread, handle, &pool) == note::Release::no_note) references::drop_own(thread, handle.reg);
    }
  });
  std::thread renews([&] {
    while (!is_over) {
      if (index.takes_renewal()) references::forget_notes(*index.start_table());
    }
  });
  for (uintptr_t i = 0; i < 3000; ++i) {
    pinrail_registration_t* reg = make(0x10000 + i * kPage, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
    state::set(reg, state::kPerThread | state::kIndexed);
    ASSERT_TRUE(put(index, reg).ok());
  }
  is_over = true;
  hits.join();
  renews.join();
  references::forget_notes(*index.start_table());
  index.invalidate_hook({0, UINTPTR_MAX}, Left::visit, &left_);
}

// recent/Q1, of pools whose addresses differ in any one bit: a request may share its place with that of another pool.
TEST(RecentPlaces, no_request_is_taken_for_one_of_another_pool) {
  const auto table = std::make_unique<RecentRequests>();
  pinrail_thread_t thread{};
  thread.recent = table.get();
  constexpr uintptr_t kAddr = 0x40000000, kFirst = 0x7f0000001000;
  // NOLINTBEGIN(performance-no-int-to-ptr): pools that are only compared
  const auto* const first = reinterpret_cast<const void*>(kFirst);
  for (unsigned bit = 6; bit < 47; ++bit) {
    const auto* const second = reinterpret_cast<const void*>(kFirst ^ uintptr_t{1} << bit);
    *table = {};
    const uintptr_t shared = recent::key_of(first, kAddr);
    const uintptr_t addr = shared ^ reinterpret_cast<uintptr_t>(second);
    const recent::Place place = recent::place_of(&thread, shared);
    *place.key = shared;
    place.entry->pool = second;
    place.entry->access = 1;
    place.entry->longest = 4096;
    EXPECT_TRUE(recent::matches(place, recent::key_of(second, addr), 1, second, 1)) << bit;
    EXPECT_FALSE(recent::matches(place, shared, 1, first, 1)) << bit;
    EXPECT_FALSE(recent::is_asked_again(place.key, shared)) << bit;
    for (const uintptr_t near : {addr, addr ^ 64, kAddr, kAddr ^ 64, ~addr, ~kAddr}) {
      const uintptr_t key = recent::key_of(second, near);
      EXPECT_FALSE(recent::matches(recent::place_of(&thread, key), key, 1, second, 1)) << bit;
    }
    EXPECT_TRUE(recent::is_asked_again(place.key, shared)) << bit;
  }
  // NOLINTEND(performance-no-int-to-ptr)
}

// recent::once(): what stands in the place of a request that was made once is the key of none that belongs there.
TEST(RecentPlaces, what_was_asked_once_is_noted_by_a_key_that_belongs_elsewhere) {
  const auto table = std::make_unique<RecentRequests>();
  pinrail_thread_t thread{};
  thread.recent = table.get();
  for (uintptr_t key = 64; key != 64 * 5000; key += 64) {
    for (const uintptr_t high : {uintptr_t{0}, uintptr_t{0x7f0000000000}, uintptr_t{0xffffffff00000000}}) {
      EXPECT_NE(recent::place_of(&thread, key ^ high).key, recent::place_of(&thread, recent::once(key ^ high)).key);
    }
  }
}

// Buffers at any distance have entries of their own, but for one pair.
TEST(RecentPlaces, as_many_buffers_as_there_are_entries_share_few) {
  const auto table = std::make_unique<RecentRequests>();
  pinrail_thread_t thread{};
  thread.recent = table.get();
  for (unsigned bit = 6; bit <= 26; ++bit) {
    for (const uintptr_t first : {uintptr_t{0}, uintptr_t{0x7f1234567000}}) {
      std::set<const uintptr_t*> places;
      for (uintptr_t i = 0; i < RecentRequests::kCount; ++i)
        places.insert(recent::place_of(&thread, first + (i << bit)).key);
      EXPECT_GE(places.size(), RecentRequests::kCount - 2) << bit;
    }
  }
}

// A note that was cleared is that of no handle, whatever a program writes into one.
TEST_F(IndexTest, a_cleared_note_answers_no_handle) {
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  start_bucket::Bucket bucket{};
  std::thread([&] {  // its slots are free
    pinrail_thread_t* const thread = thread::current();
    const void* pool = nullptr;
    ASSERT_TRUE(references::count(thread, reg, 1));
    note::write_if_near(thread, reg, {&bucket.dates[0], 0, generation_of(reg), &bucket});
    ASSERT_TRUE(references::count(thread, reg, 1)) << "which clears it";
    for (const uint64_t generation : {uint64_t{0}, references::kNoGeneration, generation_of(reg)}) {
      EXPECT_EQ(note::release(thread, {reg, generation}, &pool), note::Release::no_note) << generation;
    }
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(references::drop_own(thread, reg));
  })
      .join();
}

// A table that grows moves what it has, and versions rise.
TEST_F(IndexTest, moves_in_a_table_are_changes_too) {
  constexpr uint64_t kMany = 5000;
  Index index(false, arena::chunks(), thread::epoch_word(), {}, kMany + 1);
  for (uint64_t i = 0; i < kMany; ++i) {
    pinrail_registration_t* reg = make(0x10000 + i * kPage, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
    state::set(reg, state::kPerThread | state::kIndexed);
    ASSERT_TRUE(put(index, reg).ok());
  }
  EXPECT_TRUE(index.takes_renewal());
  index.invalidate_hook({0, UINTPTR_MAX}, Left::visit, &left_);
}

// start_table/S1, vma_start_table/S3: by its start nothing is found that is claimed, on its way in, or on its way out,
// and nothing twice.
TEST_F(IndexTest, what_is_claimed_has_no_start_until_it_is_unclaimed) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  const uint64_t unclaimed = state::kPerThread | state::kIndexed;
  const auto has_start = [&] { return start_table::entry_of(starts_of(index), reg) != nullptr; };
  state::set(reg, unclaimed);
  index.unhide(reg);
  EXPECT_FALSE(has_start()) << "on its way in";
  state::set(reg, unclaimed | state::kEvictClaim);
  ASSERT_TRUE(put(index, reg).ok());
  EXPECT_FALSE(has_start()) << "claimed before it came in";
  index.unhide(reg);
  EXPECT_FALSE(has_start()) << "claimed once more";
  state::set(reg, unclaimed);
  index.unhide(reg);
  EXPECT_TRUE(has_start());
  index.unhide(reg);
  EXPECT_EQ(index.check(), nullptr) << index.check();
  index.hide(&reg, 1);
  EXPECT_FALSE(has_start());
  index.unhide(reg);
  ASSERT_TRUE(index.remove(reg).ok());
  index.unhide(reg);
  EXPECT_FALSE(has_start()) << "on its way out";
  EXPECT_EQ(index.check(), nullptr) << index.check();
}

// What is left of it in its line answers nothing, whatever part of it is asked for, and with whatever rights.
TEST_F(IndexTest, a_start_that_went_answers_for_no_part) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_thread_t* thread = thread::current();
  pinrail_registration_t* reg = make(0x10000, 2 * kPage, 0, 0, 0, PINRAIL_COUNTING_THREADS);
  pinrail_handle_t handle{};
  const char pool = 0;
  const auto takes = [&](uintptr_t base, size_t offset) {
    start_table::Found found;
    return start_table::look_up(starts_of(index), base, offset, 1, 0, &found) &&
           start_table::take_first(thread, found, &pool, &handle) == start_table::Taken::yes;
  };
  EXPECT_FALSE(takes(0, 1)) << "an entry that was never used";
  ASSERT_TRUE(put(index, reg).ok());
  EXPECT_TRUE(takes(0x10000, kPage));
  EXPECT_TRUE(references::drop_own(thread, reg));
  ASSERT_TRUE(index.remove(reg).ok());
  for (const size_t offset : {size_t{0}, size_t{1}, kPage, 3 * kPage}) EXPECT_FALSE(takes(0x10000, offset));
  int64_t references = 0;
  references::sum(&reg, 1, PINRAIL_SUM_NOW, &references);
  EXPECT_EQ(references, 0);
}

// An entry has 36 bits of the page number; an address with more is no other one's start.
TEST_F(IndexTest, an_address_above_48_bits_finds_no_start_that_looks_like_it) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  state::set(reg, state::kPerThread | state::kIndexed);
  ASSERT_TRUE(put(index, reg).ok());
  start_table::Found found;
  for (uintptr_t high = 1; high < uintptr_t{1} << 16; ++high)
    EXPECT_FALSE(start_table::look_up(starts_of(index), 0x10000 | high << 48, 0, kPage, 1, &found)) << high;
  EXPECT_TRUE(start_table::look_up(starts_of(index), 0x10000, 0, kPage, 1, &found));
  ASSERT_TRUE(index.remove(reg).ok());
}

// vma_start_table/S4.
TEST_F(IndexTest, what_a_start_knows_of_the_last_use_is_told_when_it_goes) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_thread_t* thread = thread::current();
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  state::set(reg, state::kPerThread | state::kIndexed);
  ASSERT_TRUE(put(index, reg).ok());
  epoch::move_on(thread->epoch);
  const uint64_t used = epoch::load(thread->epoch);
  const char pool = 0;
  pinrail_handle_t handle{};
  start_table::Found found;
  ASSERT_TRUE(start_table::look_up(starts_of(index), 0x10000, 0, kPage, 1, &found));
  ASSERT_EQ(start_table::take_first(thread, found, &pool, &handle), start_table::Taken::yes);
  EXPECT_EQ(handle.reg, reg);
  epoch::move_on(thread->epoch);
  const uint64_t dropped = epoch::load(thread->epoch);
  EXPECT_LT(start_table::last_use(index.start_table(), reg, dropped), used) << "the release dates it";
  const void* noted_pool = nullptr;
  EXPECT_EQ(note::release(thread, handle, &noted_pool), note::Release::dropped);
  epoch::move_on(thread->epoch);
  EXPECT_LT(last_use(reg), used) << "the start alone was dated";
  EXPECT_EQ(start_table::last_use(index.start_table(), reg, epoch::load(thread->epoch)), dropped);
  ASSERT_TRUE(index.remove(reg).ok());
  EXPECT_EQ(last_use(reg), dropped);
}

// An evictor claims, then kills what is still claimed; the index takes its word that the start is gone.
TEST_F(IndexTest, what_died_claimed_leaves_no_start_and_what_died_otherwise_neither) {
  Index index(false, arena::chunks(), thread::epoch_word());
  for (const bool is_evicted : {true, false}) {
    pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
    state::set(reg, state::kPerThread | state::kIndexed);
    ASSERT_TRUE(put(index, reg).ok());
    EXPECT_NE(start_table::entry_of(starts_of(index), reg), nullptr);
    if (is_evicted) {
      state::set(reg, state::kPerThread | state::kIndexed | state::kEvictClaim);
      index.hide(&reg, 1);
    }
    state::set(reg, state::kPerThread | state::kDead | (is_evicted ? state::kEvictClaim : 0));
    ASSERT_TRUE(index.remove(reg).ok());
    EXPECT_EQ(start_table::entry_of(starts_of(index), reg), nullptr);
    EXPECT_EQ(index.check(), nullptr) << index.check();
  }
}

// C4: also of what it made itself.
TEST_F(IndexTest, an_insert_notes_the_start_for_the_release) {
  Index index(false, arena::chunks(), thread::epoch_word());
  index.lend_start_table();
  pinrail_thread_t* thread = thread::current();
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  const char pool = 0;
  reg->pool = reinterpret_cast<pinrail_mpool_t*>(const_cast<char*>(&pool));
  ASSERT_TRUE(references::count(thread, reg, 1));
  state::set(reg, state::kPerThread | state::kIndexed);
  ASSERT_TRUE(index.prepare().ok());
  ASSERT_TRUE(index.insert(thread, reg, Left::visit, &left_).ok());
  const pinrail_handle_t handle{reg, generation_of(reg)};
  const void* noted_pool = nullptr;
  EXPECT_EQ(note::release(thread, handle, &noted_pool), note::Release::dropped);
  EXPECT_EQ(noted_pool, &pool);
  EXPECT_EQ(note::release(thread, handle, &noted_pool), note::Release::no_note) << "it was the only one";
  ASSERT_TRUE(index.remove(reg).ok());
}

// note/N3: a pool that did not ask for the table has no notes cleared before it goes.
TEST_F(IndexTest, an_insert_notes_nothing_of_a_table_that_is_not_lent) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_thread_t* thread = thread::current();
  pinrail_registration_t* reg = make(0x10000, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS);
  ASSERT_TRUE(references::count(thread, reg, 1));
  state::set(reg, state::kPerThread | state::kIndexed);
  ASSERT_TRUE(index.prepare().ok());
  ASSERT_TRUE(index.insert(thread, reg, Left::visit, &left_).ok());
  EXPECT_NE(start_table::entry_of(starts_of(index), reg), nullptr);
  const void* noted_pool = nullptr;
  EXPECT_EQ(note::release(thread, {reg, generation_of(reg)}, &noted_pool), note::Release::no_note);
  EXPECT_TRUE(references::drop_own(thread, reg));
  ASSERT_TRUE(index.remove(reg).ok());
}

// Whatever came, went, was split or joined since the find.
TEST_F(IndexTest, an_insert_goes_no_way_that_has_changed_since_its_find) {
  Index index(false, arena::chunks(), thread::epoch_word());
  std::mt19937 random(7);
  constexpr uintptr_t kSlots = 3000;
  std::vector<pinrail_registration_t*> at(kSlots, nullptr);
  const auto base_of = [](uintptr_t slot) { return (1 + 2 * slot) * kPage; };
  const auto find = [&](uintptr_t slot) { return look(index, base_of(slot), kPage, 1); };
  const auto insert = [&](uintptr_t slot) {
    at[slot] = make(base_of(slot), kPage, 1);
    ASSERT_TRUE(index.prepare().ok());
    ASSERT_TRUE(index.insert(thread::current(), at[slot], Left::visit, &left_).ok());
  };
  const auto change = [&](uintptr_t slot) {
    if (at[slot] == nullptr) return insert(slot);
    ASSERT_TRUE(index.remove(at[slot]).ok());
    at[slot] = nullptr;
  };
  for (int round = 0; round < 30000; ++round) {
    const uintptr_t slot = random() % kSlots;
    ASSERT_EQ(find(slot), at[slot]);
    if (at[slot] == nullptr) {
      // Near it, so that its leaf and the nodes above are changed, or not at all.
      for (uintptr_t n = random() % 3; n > 0; --n) change((slot + 1 + random() % 40) % kSlots);
      insert(slot);
    } else if (round / 5000 % 2 != 0) {
      for (uintptr_t n = 0; n < 30; ++n) {
        const uintptr_t gone = (slot + n) % kSlots;
        if (at[gone] != nullptr) change(gone);
      }
    }
    if (round % 500 == 0) {
      ASSERT_EQ(index.check(), nullptr) << index.check();
    }
  }
  for (uintptr_t slot = 0; slot < kSlots; ++slot) ASSERT_EQ(find(slot), at[slot]);
}

// Whatever the distance from start to start: few entries may find no room, and none may be lost.
TEST(StartTable, no_stride_of_addresses_crowds_into_few_lines) {
  for (const uintptr_t stride : {kPage, 17 * kPage, uintptr_t{1} << 16, uintptr_t{1} << 21, uintptr_t{1} << 30}) {
    StartTable kept(arena::chunks(), thread::epoch_word());
    const size_t many = stride < uintptr_t{1} << 30 ? 50000 : 100;
    std::vector<pinrail_registration_t*> regs;
    for (size_t i = 0; i < many; ++i) {
      regs.push_back(make(0x7f0000000000 + i * stride, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS));
      if (!kept.has_room()) {
        const size_t room = kept.room();
        ASSERT_TRUE(kept.make_memory_usable(room));
        kept.note_memory(room);
      }
      kept.insert(nullptr, regs.back());
    }
    size_t found = 0;
    for (const pinrail_registration_t* reg : regs) {
      const start_table::Entry* const entry = start_table::find(kept.table(), span_of(reg).base);
      found += entry != nullptr && entry == start_table::entry_of(kept.table(), reg) ? 1 : 0;
    }
    EXPECT_GT(found, many * 99 / 100) << "stride " << stride;
    EXPECT_EQ(kept.check([](const pinrail_registration_t*) { return true; }), nullptr);
    for (const pinrail_registration_t* reg : regs) kept.remove(reg);
    for (const pinrail_registration_t* reg : regs) {
      ASSERT_EQ(start_table::entry_of(kept.table(), reg), nullptr);
      arena::free(const_cast<pinrail_registration_t*>(reg));
    }
  }
}

// The index asks for memory before each insert, and without its lock; afterwards it has the lock again.
TEST_F(IndexTest, the_table_of_starts_grows_with_the_index) {
  constexpr size_t kMany = 20000;
  Index index(false, arena::chunks(), thread::epoch_word());
  std::vector<pinrail_registration_t*> regs;
  for (size_t i = 0; i < kMany; ++i) {
    regs.push_back(make(0x7f0000000000 + 2 * i * kPage, kPage, 1, 0, 0, PINRAIL_COUNTING_THREADS));
    ASSERT_TRUE(put(index, regs.back()).ok());
  }
  size_t found = 0;
  for (const pinrail_registration_t* reg : regs)
    found += start_table::entry_of(starts_of(index), reg) != nullptr ? 1 : 0;
  EXPECT_GT(found, kMany * 99 / 100);
  EXPECT_EQ(index.check(), nullptr);
  for (pinrail_registration_t* reg : regs) ASSERT_TRUE(index.remove(reg).ok());
  EXPECT_EQ(index.check(), nullptr);
}

}  // namespace
}  // namespace pinrail::vma
