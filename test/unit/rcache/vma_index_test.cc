// SPDX-License-Identifier: BSD-3-Clause
// The index beside a model that looks at everything: what it finds, what it displaces, what an event takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>

#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr pinrail_thread_t
    thread_without_slots{};  // a thread without reference slots: references are counted in the state words

pinrail_registration_t* make(uintptr_t base, size_t length, uint32_t rights, uint32_t traits = 0, uint32_t flags = 0,
                             pinrail_counting_t counting = PINRAIL_COUNTING_SHARED) {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, counting, &reg).ok());
  reg->base = reinterpret_cast<void*>(base);
  reg->length = length;
  reg->rights = rights;
  reg->traits = traits;
  reg->flags = flags;
  state::set(reg, state::kIndexed | (counting == PINRAIL_COUNTING_THREADS ? state::kPerThread : 0));
  return reg;
}

// Collects what leaves.
struct Left {
  std::vector<pinrail_registration_t*> regs;
  static void visit(void* arg, pinrail_registration_t* const* regs, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      uint64_t before;
      kill(regs[i], &before);
      static_cast<Left*>(arg)->regs.push_back(regs[i]);
    }
  }
};

pinrail_announcement_t announcing(uintptr_t base, size_t length, uint32_t access) {
  pinrail_announcement_t announcement{};
  announcement.base = base;
  announcement.length = length;
  announcement.access = access;
  return announcement;
}

// Of an index that is not EXACT, which has one.
const pinrail_start_table_t& starts_of(const Index& index) {
  const pinrail_start_table_t* const table = index.start_table();
  if (table == nullptr) std::abort();
  return *table;
}

class IndexTest : public ::testing::Test {
 protected:
  Status put(Index& index, pinrail_registration_t* reg) {
    EXPECT_TRUE(index.prepare().ok());
    return index.insert(nullptr, reg, Left::visit, &left_);
  }
  // The found registration, its reference dropped again; NULL if none.
  static pinrail_registration_t* look(const Index& index, uintptr_t base, size_t length, uint32_t rights,
                                      uint32_t traits = 0) {
    // A thread with reference slots takes what is counted per thread by its start; one without goes down the tree.
    pinrail_registration_t* reg = index.find(thread::current(), base, length, rights | traits);
    if (reg == nullptr) return nullptr;
    if ((state::load(reg) & state::kPerThread) != 0) {
      references::drop_counted(thread::current(), reg);
      return reg;
    }
    uint64_t word;
    EXPECT_NE(drop_shared({reg, generation_of(reg)}, &word), Drop::stale);
    return reg;
  }
  Left left_;
};

TEST_F(IndexTest, an_empty_index_finds_nothing) {
  Index index(false, arena::chunks(), thread::epoch_word());
  EXPECT_EQ(look(index, kPage, kPage, 0), nullptr);
  EXPECT_EQ(index.count(), 0u);
  EXPECT_EQ(index.check(), nullptr);
}

TEST_F(IndexTest, a_range_inside_a_registration_is_found_and_one_that_sticks_out_is_not) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, 0x4000, 1);
  ASSERT_TRUE(put(index, reg).ok());
  EXPECT_EQ(look(index, 0x10000, 0x4000, 1), reg);
  EXPECT_EQ(look(index, 0x12345, 1, 0), reg);
  EXPECT_EQ(look(index, 0x13fff, 1, 1), reg);
  EXPECT_EQ(look(index, 0x13fff, 2, 1), nullptr);
  EXPECT_EQ(look(index, 0xffff, 2, 1), nullptr);
}

TEST_F(IndexTest, rights_must_be_a_superset_and_traits_equal) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, 0x4000, 3, PINRAIL_TRAIT_RELAXED_ORDERING);
  ASSERT_TRUE(put(index, reg).ok());
  EXPECT_EQ(look(index, 0x10000, 1, 2, PINRAIL_TRAIT_RELAXED_ORDERING), reg);
  EXPECT_EQ(look(index, 0x10000, 1, 4, PINRAIL_TRAIT_RELAXED_ORDERING), nullptr);
  EXPECT_EQ(look(index, 0x10000, 1, 2, 0), nullptr);
}

TEST_F(IndexTest, a_larger_registration_displaces_what_it_contains_but_not_what_has_more_rights) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* small = make(0x11000, 0x1000, 1);
  pinrail_registration_t* strong = make(0x12000, 0x1000, 3);
  pinrail_registration_t* pinned = make(0x13000, 0x1000, 1, 0, PINRAIL_FLAG_PERSISTENT);
  pinrail_registration_t* across = make(0xf000, 0x2000, 1);
  for (auto* reg : {small, strong, pinned, across}) ASSERT_TRUE(put(index, reg).ok());
  pinrail_registration_t* large = make(0x10000, 0x8000, 1);
  ASSERT_TRUE(put(index, large).ok());
  EXPECT_EQ(left_.regs, std::vector<pinrail_registration_t*>{small});
  EXPECT_EQ(index.count(), 4u);
  EXPECT_EQ(index.check(), nullptr);
}

// The usual way of a buffer that grows; enough of them that some stand at the ends of leaves.
TEST_F(IndexTest, a_longer_one_displaces_what_begins_where_it_begins) {
  constexpr uintptr_t kMany = 300;
  Index index(false, arena::chunks(), thread::epoch_word());
  for (const size_t length : {0x1000, 0x2000, 0x5000}) {
    for (uintptr_t i = 0; i < kMany; ++i) ASSERT_TRUE(put(index, make(0x10000 * (i + 1), length, 1)).ok());
    EXPECT_EQ(index.count(), kMany);
    EXPECT_EQ(index.check(), nullptr);
  }
  EXPECT_EQ(left_.regs.size(), 2 * kMany);
}

// Two calls may register a range and a longer one with the same base at once: the shorter one is published last.
TEST_F(IndexTest, what_is_contained_in_one_with_the_same_base_is_refused) {
  Index index(false, arena::chunks(), thread::epoch_word());
  EXPECT_TRUE(put(index, make(0x10000, 0x8000, 1)).ok());
  EXPECT_TRUE(put(index, make(0x10000, 0x7000, 1)).is(PINRAIL_ERR_BUSY));
  EXPECT_EQ(index.count(), 1u);
}

TEST_F(IndexTest, what_is_contained_in_a_stronger_one_is_refused) {
  Index index(false, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(put(index, make(0x10000, 0x8000, 3)).ok());
  EXPECT_TRUE(put(index, make(0x11000, 0x1000, 1)).is(PINRAIL_ERR_BUSY));
  EXPECT_TRUE(put(index, make(0x10000, 0x8000, 3)).is(PINRAIL_ERR_BUSY));
  EXPECT_TRUE(put(index, make(0x11000, 0x1000, 1, 0, PINRAIL_FLAG_PERSISTENT)).ok());
  EXPECT_EQ(index.check(), nullptr);
}

TEST_F(IndexTest, an_exact_index_hits_on_equal_range_and_rights_only) {
  Index index(true, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* outer = make(0x10000, 100, 3);
  pinrail_registration_t* inner = make(0x10000, 50, 3);
  ASSERT_TRUE(put(index, outer).ok());
  ASSERT_TRUE(put(index, inner).ok());
  EXPECT_TRUE(left_.regs.empty());
  EXPECT_EQ(look(index, 0x10000, 100, 3), outer);
  EXPECT_EQ(look(index, 0x10000, 50, 3), inner);
  EXPECT_EQ(look(index, 0x10000, 50, 1), nullptr);
  EXPECT_EQ(look(index, 0x10000, 49, 3), nullptr);
}

TEST_F(IndexTest, unmapping_the_middle_page_hides_the_whole_registration) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, 0x3000, 1);
  pinrail_registration_t* next = make(0x13000, 0x1000, 1);
  ASSERT_TRUE(put(index, reg).ok());
  ASSERT_TRUE(put(index, next).ok());
  index.invalidate_hook(Span::of(0x11000, 0x1000), Left::visit, &left_);
  EXPECT_EQ(left_.regs, std::vector<pinrail_registration_t*>{reg});
  EXPECT_EQ(look(index, 0x10000, 1, 1), nullptr);
  EXPECT_EQ(look(index, 0x13000, 1, 1), next);
}

TEST_F(IndexTest, a_dead_registration_is_not_found_and_one_behind_it_is) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* outer = make(0x10000, 0x3000, 1);
  pinrail_registration_t* later = make(0x11000, 0x8000, 1);
  ASSERT_TRUE(put(index, outer).ok());
  ASSERT_TRUE(put(index, later).ok());
  uint64_t before;
  ASSERT_TRUE(kill(later, &before));  // as an evictor does, before it removes
  pinrail_registration_t* found = nullptr;
  ASSERT_TRUE(index.find_under_lock(&thread_without_slots, {Span::of(0x12000, 1), 1, 0}, &found).ok());
  EXPECT_EQ(found, outer);
  EXPECT_TRUE(index.remove(later).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(index.count(), 1u);
}

TEST_F(IndexTest, what_is_dead_or_claimed_is_not_taken_without_the_lock_and_a_claim_is_broken_with_it) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = nullptr;
  ASSERT_TRUE(arena::allocate(0, PINRAIL_COUNTING_THREADS, &reg).ok());
  reg->base = reinterpret_cast<void*>(0x10000);
  reg->length = 0x1000;
  state::set(reg, state::kPerThread | state::kIndexed);
  ASSERT_TRUE(put(index, reg).ok());
  pinrail_thread_t* thread = thread::current();
  const Query query{Span::of(0x10000, 1), 0, 0};
  const auto find = [&] { return index.find(thread, 0x10000, 1, 0); };
  pinrail_registration_t* found = nullptr;
  state::set(reg, state::kPerThread | state::kIndexed | state::kEvictClaim);
  index.hide(&reg, 1);
  EXPECT_EQ(find(), nullptr);
  EXPECT_TRUE(index.find_under_lock(thread, query, &found).ok());
  EXPECT_EQ(state::load(reg) & state::kEvictClaim, 0u);
  EXPECT_EQ(find(), reg);
  uint64_t before;
  ASSERT_TRUE(kill(reg, &before));
  ASSERT_TRUE(index.remove(reg).ok());
  EXPECT_EQ(find(), nullptr);
  int64_t references = 0;
  references::sum(&reg, 1, PINRAIL_SUM_NOW, &references);
  EXPECT_EQ(references, 2) << "what was not taken was not counted";
}

TEST_F(IndexTest, containing_rights_are_those_of_every_containing_registration) {
  Index index(false, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(put(index, make(0x10000, 0x3000, 1)).ok());
  ASSERT_TRUE(put(index, make(0x11000, 0x3000, 2)).ok());
  ASSERT_TRUE(put(index, make(0x14000, 0x3000, 4)).ok());
  // Nothing has the right 8; the index says which rights those have that would contain the range.
  const auto rights_of = [&](uintptr_t base, size_t length, uint32_t traits) {
    pinrail_registration_t* reg = nullptr;
    pinrail_announcement_t announcement = announcing(base, length, 8 | traits);
    EXPECT_FALSE(index.find_or_announce(&thread_without_slots, &announcement, &reg).ok());
    EXPECT_TRUE(index.withdraw(&announcement).ok());
    return announcement.more_rights;
  };
  EXPECT_EQ(rights_of(0x11000, 0x2000, 0), 3u);
  EXPECT_EQ(rights_of(0x11000, 0x2001, 0), 2u);
  EXPECT_EQ(rights_of(0x11000, 1, PINRAIL_TRAIT_ON_DEMAND), 0u);
}

TEST_F(IndexTest, an_announcement_finds_what_is_there_and_says_whether_memory_is_needed) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* reg = make(0x10000, 0x3000, 1);
  pinrail_registration_t* found = nullptr;
  pinrail_announcement_t first = announcing(0x10000, 0x3000, 1), inner = announcing(0x11000, 0x1000, 1);
  EXPECT_TRUE(index.find_or_announce(&thread_without_slots, &first, &found).is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE))
      << "no nodes yet";
  EXPECT_TRUE(index.publish(nullptr, &first, reg, Left::visit, &left_).is(PINRAIL_ERR_OUT_OF_RESOURCE));
  EXPECT_TRUE(index.prepare().ok());
  EXPECT_TRUE(index.publish(nullptr, &first, reg, Left::visit, &left_).ok());
  EXPECT_TRUE(index.find_or_announce(&thread_without_slots, &inner, &found).ok());
  EXPECT_EQ(found, reg);
  pinrail_announcement_t other = announcing(0x20000, 1, 1);
  EXPECT_TRUE(index.find_or_announce(&thread_without_slots, &other, &found).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(index.withdraw(&other).ok());
}

// R5: beside another call, a thread whose own find found nothing searches again only if something was inserted since.
TEST_F(IndexTest, an_announcement_beside_another_finds_what_was_inserted_since_the_threads_own_find) {
  Index index(false, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(index.prepare().ok());
  ASSERT_TRUE(put(index, make(0x90000, 0x1000, 1)).ok());
  pinrail_registration_t* found = nullptr;
  pinrail_announcement_t other = announcing(0x10000, 0x1000, 1), own = announcing(0x20000, 0x1000, 1);
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &other, &found).is(PINRAIL_ERR_NOT_FOUND));
  const auto announce_after_find = [&](pinrail_registration_t* inserted_between) {
    EXPECT_EQ(index.find_without_start_table(thread::current(), 0x20000, 0x1000, 1), nullptr);
    EXPECT_TRUE(inserted_between == nullptr || put(index, inserted_between).ok());
    return index.find_or_announce(thread::current(), &own, &found).code();
  };
  EXPECT_EQ(announce_after_find(make(0x80000, 0x1000, 1)), PINRAIL_ERR_NOT_FOUND) << "another range";
  EXPECT_TRUE(index.withdraw(&own).ok());
  EXPECT_EQ(announce_after_find(nullptr), PINRAIL_ERR_NOT_FOUND);
  EXPECT_TRUE(index.withdraw(&own).ok());
  pinrail_registration_t* reg = make(0x20000, 0x1000, 3);
  EXPECT_EQ(announce_after_find(reg), PINRAIL_SUCCESS);
  EXPECT_EQ(found, reg);
  EXPECT_TRUE(index.withdraw(&other).ok());
}

// R5: it is waited for once, by its name.
TEST_F(IndexTest, a_request_waits_for_the_announcement_that_will_answer_it_and_for_no_other) {
  Index index(false, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(index.prepare().ok());
  pinrail_registration_t* found = nullptr;
  const auto announce = [&](pinrail_announcement_t* announcement) {
    return index.find_or_announce(&thread_without_slots, announcement, &found).code();
  };
  pinrail_announcement_t outer = announcing(0x10000, 0x3000, 3), equal = announcing(0x10000, 0x3000, 1),
                         wider = announcing(0x10000, 0x3000, 4), beyond = announcing(0x11000, 0x3000, 1);
  ASSERT_EQ(announce(&outer), PINRAIL_ERR_NOT_FOUND);
  ASSERT_EQ(announce(&wider), PINRAIL_ERR_NOT_FOUND) << "other rights";
  ASSERT_EQ(announce(&beyond), PINRAIL_ERR_NOT_FOUND) << "another range";
  ASSERT_EQ(announce(&equal), PINRAIL_ERR_WOULD_BLOCK);
  ASSERT_EQ(announce(&equal), PINRAIL_ERR_WOULD_BLOCK) << "as long as it lasts";
  ASSERT_TRUE(index.withdraw(&outer).ok());
  pinrail_announcement_t again = announcing(0x10000, 0x3000, 3);
  ASSERT_EQ(announce(&again), PINRAIL_ERR_NOT_FOUND);
  ASSERT_EQ(announce(&equal), PINRAIL_ERR_NOT_FOUND) << "another one, at that";
  for (pinrail_announcement_t* each : {&again, &wider, &equal, &beyond}) ASSERT_TRUE(index.withdraw(each).ok());
}

TEST_F(IndexTest, an_exact_index_waits_for_equal_requests_alone) {
  Index index(true, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(index.prepare().ok());
  pinrail_registration_t* found = nullptr;
  pinrail_announcement_t outer = announcing(0x10000, 0x3000, 3), inner = announcing(0x10000, 0x1000, 3),
                         equal = announcing(0x10000, 0x3000, 3);
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &outer, &found).is(PINRAIL_ERR_NOT_FOUND));
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &inner, &found).is(PINRAIL_ERR_NOT_FOUND));
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &equal, &found).is(PINRAIL_ERR_WOULD_BLOCK));
  ASSERT_TRUE(index.withdraw(&outer).ok());
  ASSERT_TRUE(index.withdraw(&inner).ok());
}

// R13
TEST_F(IndexTest, an_event_overtakes_the_announcements_that_it_overlaps_once) {
  Index index(false, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(index.prepare().ok());
  pinrail_registration_t* found = nullptr;
  pinrail_announcement_t hit = announcing(0x10000, 0x2000, 1), missed = announcing(0x20000, 0x2000, 1);
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &hit, &found).is(PINRAIL_ERR_NOT_FOUND));
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &missed, &found).is(PINRAIL_ERR_NOT_FOUND));
  index.invalidate_hook(Span::of(0x11000, 0x1000), Left::visit, &left_);
  pinrail_registration_t* reg = make(0x10000, 0x2000, 1);
  EXPECT_TRUE(index.publish(nullptr, &hit, reg, Left::visit, &left_).is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE));
  EXPECT_EQ(index.count(), 0u);
  EXPECT_TRUE(index.publish(nullptr, &hit, reg, Left::visit, &left_).ok()) << "it was said";
  EXPECT_TRUE(index.publish(nullptr, &missed, make(0x20000, 0x2000, 1), Left::visit, &left_).ok());
  index.invalidate_hook(Span::of(0x10000, 0x20000), Left::visit, &left_);
  EXPECT_EQ(left_.regs.size(), 2u);
}

TEST_F(IndexTest, a_dead_registration_leaves_with_the_publish_of_another_one_whether_that_is_inserted_or_not) {
  for (const bool is_overtaken : {false, true}) {
    Index index(false, arena::chunks(), thread::epoch_word());
    pinrail_registration_t* const leaving = make(0x10000, 0x1000, 1);
    ASSERT_TRUE(put(index, leaving).ok());
    pinrail_registration_t* found = nullptr;
    pinrail_announcement_t announcement = announcing(0x20000, 0x1000, 1);
    ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &announcement, &found).is(PINRAIL_ERR_NOT_FOUND));
    uint64_t before;
    ASSERT_TRUE(kill(leaving, &before));
    if (is_overtaken) index.invalidate_hook(Span::of(0x20000, 0x1000), Left::visit, &left_);
    const Status published =
        index.publish(nullptr, &announcement, make(0x20000, 0x1000, 1), Left::visit, &left_, leaving);
    EXPECT_EQ(published.ok(), !is_overtaken);
    EXPECT_EQ(index.count(), is_overtaken ? 0u : 1u);
    EXPECT_TRUE(index.remove(leaving).is(PINRAIL_ERR_NOT_FOUND));
    EXPECT_EQ(index.check(), nullptr);
  }
}

// R3, R4: its pool removes it soon, and it answers nothing.
TEST_F(IndexTest, a_dead_registration_is_no_reason_to_refuse_what_it_contains_and_adds_no_rights) {
  Index index(false, arena::chunks(), thread::epoch_word());
  pinrail_registration_t* const strong = make(0x10000, 0x4000, 2);
  pinrail_registration_t* const dead = make(0x20000, 0x4000, 1);
  for (pinrail_registration_t* reg : {strong, dead}) {
    ASSERT_TRUE(put(index, reg).ok());
    uint64_t before;
    ASSERT_TRUE(kill(reg, &before));
  }
  pinrail_registration_t* found = nullptr;
  pinrail_announcement_t announcement = announcing(0x11000, 0x1000, 1);
  ASSERT_TRUE(index.find_or_announce(&thread_without_slots, &announcement, &found).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(announcement.more_rights, 0u);
  EXPECT_TRUE(put(index, make(0x21000, 0x1000, 1)).ok());
  EXPECT_EQ(index.count(), 1u);
}

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

TEST_F(IndexTest, covered_bytes_counts_each_page_once) {
  Index index(false, arena::chunks(), thread::epoch_word());
  ASSERT_TRUE(put(index, make(0x10000, 0x3000, 1)).ok());
  ASSERT_TRUE(put(index, make(0x11000, 0x3000, 2)).ok());
  ASSERT_TRUE(put(index, make(0x20000, 0x1000, 1)).ok());
  EXPECT_EQ(index.covered_bytes(), 0x5000u);
}

TEST_F(IndexTest, find_all_gives_referenced_ones_up_to_the_room_and_the_whole_count) {
  Index index(false, arena::chunks(), thread::epoch_word());
  for (uintptr_t i = 0; i < 10; ++i) ASSERT_TRUE(put(index, make(0x10000 + i * 0x1000, 0x1800, 1)).ok());
  pinrail_registration_t* found[4];
  EXPECT_EQ(index.find_all(&thread_without_slots, Span::of(0x12000, 0x3000), found, 4), 4u);
  for (auto* reg : found) EXPECT_EQ(state::references(state::load(reg)), 1u);
  EXPECT_EQ(index.find_all(&thread_without_slots, {0, UINTPTR_MAX}, found, 0), 10u);
}

// The model: a set of spans with rights, every answer by looking at all of them.
struct Model {
  std::vector<pinrail_registration_t*> in;

  bool contains(const Span& span, uint32_t rights, uint32_t traits) const {
    return std::any_of(in.begin(), in.end(), [&](auto* reg) {
      return span_of(reg).contains(span) && (reg->rights & rights) == rights && reg->traits == traits;
    });
  }
  std::set<pinrail_registration_t*> dominated_by(const pinrail_registration_t* by) const {
    std::set<pinrail_registration_t*> out;
    for (auto* reg : in) {
      const bool weaker = (by->rights & reg->rights) == reg->rights && reg->traits == by->traits;
      if (weaker && span_of(by).contains(span_of(reg))) out.insert(reg);
    }
    return out;
  }
  std::set<pinrail_registration_t*> overlapping(const Span& span) const {
    std::set<pinrail_registration_t*> out;
    for (auto* reg : in) {
      if (span_of(reg).overlaps(span)) out.insert(reg);
    }
    return out;
  }
  void erase(const std::set<pinrail_registration_t*>& gone) {
    in.erase(std::remove_if(in.begin(), in.end(), [&](auto* reg) { return gone.count(reg) != 0; }), in.end());
  }
};

class RandomIndexTest : public IndexTest, public ::testing::WithParamInterface<unsigned> {};

TEST_P(RandomIndexTest, agrees_with_the_model_at_every_step) {
  std::mt19937 random(GetParam());
  const bool deep = GetParam() % 2 != 0;  // few overlaps and trees of three levels; else crowded
  const uintptr_t pages = deep ? 1 << 16 : 64;
  auto pick = [&](uintptr_t n) { return std::uniform_int_distribution<uintptr_t>(0, n - 1)(random); };
  auto span = [&] {
    const uintptr_t longest = pick(deep ? 4000 : 8) == 0 ? pages / 2 : 6;
    return Span::of((1 + pick(pages)) * kPage, (1 + pick(longest)) * kPage);
  };
  size_t most = 0;
  Index index(false, arena::chunks(), thread::epoch_word());
  Model model;
  for (int step = 0; step < 10000; ++step) {
    const Span at = span();
    const auto rights = static_cast<uint32_t>(pick(4));
    const uint32_t traits = pick(8) == 0 ? PINRAIL_TRAIT_RELAXED_ORDERING : 0;
    left_.regs.clear();
    const uintptr_t what = pick(step % 5000 < 4000 ? 60 : 18);  // grows, and shrinks again
    if (what < 12) {
      ASSERT_EQ(look(index, at.base, at.length(), rights, traits) != nullptr, model.contains(at, rights, traits));
    } else if (what == 13) {
      const auto gone = model.overlapping(at);
      index.invalidate_hook(at, Left::visit, &left_);
      ASSERT_EQ(std::set<pinrail_registration_t*>(left_.regs.begin(), left_.regs.end()), gone);
      ASSERT_EQ(left_.regs.size(), gone.size());
      model.erase(gone);
    } else if (what < 17 && !model.in.empty()) {
      pinrail_registration_t* reg = model.in[pick(model.in.size())];
      ASSERT_TRUE(index.remove(reg).ok());
      model.erase({reg});
    } else {
      pinrail_registration_t* reg = make(at.base, at.length(), rights, traits);
      const bool refused = model.contains(at, rights, traits);
      const auto gone = model.dominated_by(reg);
      ASSERT_EQ(put(index, reg).is(PINRAIL_ERR_BUSY), refused);
      if (refused) continue;
      ASSERT_EQ(std::set<pinrail_registration_t*>(left_.regs.begin(), left_.regs.end()), gone);
      model.erase(gone);
      model.in.push_back(reg);
    }
    ASSERT_EQ(index.count(), model.in.size());
    most = std::max(most, model.in.size());
    if (step % 64 == 0) {
      ASSERT_EQ(index.check(), nullptr) << index.check();
    }
  }
  EXPECT_GT(most, deep ? 1000u : 20u);
  index.invalidate_hook({0, UINTPTR_MAX}, Left::visit, &left_);
  EXPECT_EQ(index.count(), 0u);
  EXPECT_EQ(index.check(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomIndexTest, ::testing::Range(1u, 13u));

class PersistentIndexTest : public IndexTest, public ::testing::WithParamInterface<bool> {};

// Persistent (and exact) ones may contain each other: the reach of the nodes has to find the right one all the same.
TEST_P(PersistentIndexTest, nested_registrations_are_all_found) {
  const bool exact = GetParam();
  Index index(exact, arena::chunks(), thread::epoch_word());
  std::mt19937 random(7);
  Model model;
  for (int i = 0; i < 3000; ++i) {
    const uintptr_t base = 0x100000 + (random() % 512) * kPage;
    const size_t length = (1 + random() % (i % 64 == 0 ? 512 : 8)) * kPage;
    pinrail_registration_t* reg = make(base, length, 1, 0, PINRAIL_FLAG_PERSISTENT);
    const bool equal = std::any_of(model.in.begin(), model.in.end(), [&](auto* other) {
      return other->base == reg->base && other->length == reg->length;
    });
    ASSERT_EQ(put(index, reg).is(PINRAIL_ERR_BUSY), equal);
    if (!equal) model.in.push_back(reg);
  }
  ASSERT_EQ(index.check(), nullptr) << index.check();
  for (int i = 0; i < 3000; ++i) {
    const Span span = Span::of(0x100000 + (random() % 600) * kPage, (1 + random() % 64) * kPage);
    const bool expected =
        exact ? std::any_of(model.in.begin(), model.in.end(),
                            [&](auto* reg) { return span_of(reg).base == span.base && span_of(reg).end == span.end; })
              : model.contains(span, 1, 0);
    ASSERT_EQ(look(index, span.base, span.length(), 1) != nullptr, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PersistentIndexTest, ::testing::Bool());

}  // namespace
}  // namespace pinrail::vma
