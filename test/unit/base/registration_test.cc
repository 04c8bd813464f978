// SPDX-License-Identifier: BSD-3-Clause
// registration_test.cc - the state word of a registration: each way to change it, from each state in which it may be.
// And where registrations come from, and the hints that lead to them.
#include "base/registration/registration.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "base/hit/hints.h"
#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"

namespace pinrail {
namespace {

using state::kDead;
using state::kIndexed;
using state::kLast;
using state::kNotify;
using state::kOrphan;
using state::kQuick;
using state::kTransient;

class StateWord : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(arena::allocate(0, 0, &reg_).ok()); }
  ~StateWord() override { arena::free(reg_); }  // it starts the next generation, whatever the word is

  // Published with these flags, and so many references.
  void publish(uint64_t flags, uint64_t references = 1) { set(generation_of(reg_) | flags, references); }
  void set(uint64_t generation_and_flags, uint64_t references) {
    state::publish(reg_, generation_and_flags & state::kFlags);
    uint64_t word = state::load(reg_);
    ASSERT_TRUE(state::exchange(reg_, &word, generation_and_flags | references * state::kOne));
  }
  uint64_t flags() const { return state::load(reg_) & state::kFlags; }
  pinrail_handle_t handle() const { return {reg_, generation_of(reg_)}; }
  pinrail_handle_t stale_handle() const { return {reg_, state::next_generation(generation_of(reg_))}; }

  pinrail_registration_t* reg_ = nullptr;
};

TEST_F(StateWord, is_published_with_its_makers_reference_and_keeps_its_generation) {
  const uint64_t generation = generation_of(reg_);
  state::publish(reg_, kIndexed | kQuick);
  EXPECT_EQ(state::load(reg_), generation | kIndexed | kQuick | state::kOne);
  EXPECT_TRUE(is_indexed(reg_));
  EXPECT_EQ(references_of(reg_), 1u);
}

TEST_F(StateWord, the_next_generation_has_no_flags_no_references_and_another_number) {
  publish(kIndexed | kQuick, 3);
  const uint64_t before = generation_of(reg_);
  state::renew(reg_);
  EXPECT_EQ(state::load(reg_), state::next_generation(before));
  EXPECT_NE(generation_of(reg_), before);
  EXPECT_EQ(state::next_generation(state::kGenerationMask), 0u) << "it wraps within its bits";
}

TEST_F(StateWord, a_reference_is_taken_of_what_is_indexed_and_of_nothing_else) {
  for (const uint64_t other : {uint64_t{0}, kDead, kDead | kLast, kDead | kOrphan, kTransient, kQuick}) {
    publish(other);
    EXPECT_FALSE(take(reg_, state::load(reg_))) << other;
    EXPECT_EQ(references_of(reg_), 1u) << other;
  }
  publish(kIndexed);
  EXPECT_TRUE(take(reg_, state::load(reg_)));
  EXPECT_EQ(references_of(reg_), 2u);
}

TEST_F(StateWord, a_reference_is_taken_with_an_old_word_of_the_same_generation) {
  publish(kIndexed, 0);
  const uint64_t early = state::load(reg_);
  publish(kIndexed | kNotify, 5);
  EXPECT_TRUE(take(reg_, early));
  EXPECT_EQ(state::load(reg_), generation_of(reg_) | kIndexed | kNotify | 6 * state::kOne);
}

TEST_F(StateWord, no_reference_is_taken_with_a_word_of_another_generation) {
  publish(kIndexed | kQuick);
  const uint64_t early = state::load(reg_);
  state::renew(reg_);
  publish(kIndexed | kQuick);
  EXPECT_FALSE(take(reg_, early));
  EXPECT_FALSE(take_quick(reg_, state::generation(early)));
  EXPECT_EQ(references_of(reg_), 1u);
}

TEST_F(StateWord, is_taken_quickly_only_if_it_is_quick_and_indexed) {
  for (const uint64_t other : {kIndexed, kQuick, kQuick | kDead}) {
    publish(other);
    EXPECT_FALSE(take_quick(reg_, generation_of(reg_))) << other;
  }
  publish(kIndexed | kQuick | kNotify);
  EXPECT_TRUE(take_quick(reg_, generation_of(reg_)));
  EXPECT_EQ(references_of(reg_), 2u);
  EXPECT_EQ(flags(), kIndexed | kQuick | kNotify);
}

TEST_F(StateWord, a_full_count_refuses_one_more_and_changes_nothing) {
  publish(kIndexed | kQuick, state::kMaxReferences - 1);
  EXPECT_TRUE(take(reg_, state::load(reg_)));
  const uint64_t full = state::load(reg_);
  EXPECT_EQ(state::references(full), (uint64_t{1} << 20) - 1);
  EXPECT_FALSE(take(reg_, full));
  EXPECT_FALSE(take_quick(reg_, generation_of(reg_)));
  EXPECT_EQ(state::load(reg_), full);
  EXPECT_EQ(drop(handle()), Drop::done);
  EXPECT_TRUE(take_quick(reg_, generation_of(reg_)));
}

TEST_F(StateWord, a_drop_that_is_not_the_last_is_only_counted) {
  for (const uint64_t any : {kIndexed, kDead, kIndexed | kTransient, kIndexed | kNotify, kDead | kOrphan}) {
    publish(any, 2);
    EXPECT_EQ(drop(handle()), Drop::done) << any;
    EXPECT_EQ(references_of(reg_), 1u) << any;
    EXPECT_EQ(flags(), any);
  }
}

TEST_F(StateWord, the_last_drop_of_what_is_kept_leaves_it_indexed) {
  publish(kIndexed);
  EXPECT_EQ(drop(handle()), Drop::done);
  EXPECT_EQ(flags(), kIndexed);
  EXPECT_TRUE(take(reg_, state::load(reg_)));
}

TEST_F(StateWord, the_last_drop_tells_the_pool_that_has_asked) {
  publish(kIndexed | kNotify);
  EXPECT_EQ(drop(handle()), Drop::idle);
  EXPECT_EQ(flags(), kIndexed | kNotify) << "it is cached still";
}

// registration/S2
TEST_F(StateWord, the_last_drop_of_a_dead_or_transient_one_owns_it) {
  for (const uint64_t ends : {kDead, kIndexed | kTransient, kIndexed | kTransient | kNotify, kDead | kNotify,
                              kDead | kOrphan, kDead | kTransient}) {
    publish(ends);
    EXPECT_EQ(drop(handle()), Drop::last) << ends;
    EXPECT_EQ(flags() & (kIndexed | kDead | kLast), kDead | kLast) << ends;
    EXPECT_FALSE(take(reg_, state::load(reg_))) << ends;
  }
}

TEST_F(StateWord, a_stale_or_spent_handle_drops_nothing) {
  publish(kIndexed, 2);
  EXPECT_EQ(drop(stale_handle()), Drop::stale);
  EXPECT_EQ(references_of(reg_), 2u);
  publish(kIndexed, 0);
  EXPECT_EQ(drop(handle()), Drop::stale) << "no reference is left";
  EXPECT_EQ(references_of(reg_), 0u);
}

TEST_F(StateWord, a_quick_drop_does_what_needs_no_pool_and_nothing_else) {
  publish(kIndexed | kQuick, 2);
  EXPECT_TRUE(drop_quick(handle()));
  EXPECT_TRUE(drop_quick(handle())) << "the last one of what is kept";
  EXPECT_FALSE(drop_quick(handle())) << "none is left";
  EXPECT_EQ(state::load(reg_), generation_of(reg_) | kIndexed | kQuick);
  for (const uint64_t flag : {kDead, kTransient | kIndexed, kNotify | kIndexed}) {
    publish(flag | kQuick, 2);
    EXPECT_TRUE(drop_quick(handle())) << flag;
    EXPECT_FALSE(drop_quick(handle())) << "the last one of " << flag;
    EXPECT_EQ(references_of(reg_), 1u) << flag;
  }
  publish(kIndexed, 2);
  EXPECT_FALSE(drop_quick(handle())) << "not quick";
  publish(kIndexed | kQuick, 2);
  EXPECT_FALSE(drop_quick(stale_handle()));
  EXPECT_EQ(references_of(reg_), 2u);
}

TEST_F(StateWord, what_is_idle_and_indexed_is_retired_and_owned) {
  publish(kIndexed | kQuick | kNotify, 0);
  EXPECT_TRUE(retire(reg_, state::load(reg_)));
  EXPECT_EQ(flags(), kDead | kLast | kQuick | kNotify);
  EXPECT_FALSE(retire(reg_, state::load(reg_))) << "once";
}

TEST_F(StateWord, what_is_referenced_dead_or_has_changed_is_not_retired) {
  publish(kIndexed, 1);
  EXPECT_FALSE(retire(reg_, state::load(reg_)));
  publish(kDead, 0);
  EXPECT_FALSE(retire(reg_, state::load(reg_)));
  publish(kIndexed, 0);
  const uint64_t early = state::load(reg_);
  ASSERT_TRUE(take(reg_, early));
  EXPECT_FALSE(retire(reg_, early)) << "a hit came in between";
  EXPECT_EQ(state::load(reg_), early + state::kOne);
}

// registration/S2: dead and last come by one exchange.
TEST_F(StateWord, an_event_owns_what_is_idle_and_leaves_what_is_held_to_its_last_drop) {
  publish(kIndexed | kQuick, 0);
  EXPECT_EQ(kill(reg_), Killed::owned);
  EXPECT_EQ(flags(), kDead | kLast | kQuick);
  EXPECT_EQ(kill(reg_), Killed::no);
  state::renew(reg_);
  publish(kIndexed, 2);
  EXPECT_EQ(kill(reg_), Killed::held);
  EXPECT_EQ(flags(), kDead);
  EXPECT_EQ(kill(reg_), Killed::no) << "a second event";
  EXPECT_EQ(drop(handle()), Drop::done);
  EXPECT_EQ(drop(handle()), Drop::last);
}

TEST_F(StateWord, what_was_not_published_is_not_killed) { EXPECT_EQ(kill(reg_), Killed::no); }

// R10
TEST_F(StateWord, a_destroyed_pool_owns_what_is_idle_and_makes_orphans_of_what_is_held) {
  for (const uint64_t any : {kIndexed | kQuick, kIndexed | kTransient, kDead}) {
    publish(any, 2);
    EXPECT_EQ(orphan(reg_), Killed::held) << any;
    EXPECT_EQ(flags() & (kIndexed | kDead | kLast | kOrphan | kQuick), kDead | kOrphan) << any;
    EXPECT_FALSE(drop_quick(handle())) << any;
    EXPECT_EQ(drop(handle()), Drop::done) << any;
    EXPECT_EQ(drop(handle()), Drop::last) << any;
    EXPECT_EQ(flags() & (kLast | kOrphan), kLast | kOrphan) << any;
  }
  publish(kIndexed | kQuick, 0);
  EXPECT_EQ(orphan(reg_), Killed::owned);
  EXPECT_EQ(flags() & (kDead | kLast | kOrphan), kDead | kLast);
  EXPECT_EQ(orphan(reg_), Killed::no) << "it is owned already";
}

TEST_F(StateWord, a_use_gives_so_many_chances_and_no_more) {
  EXPECT_FALSE(take_chance(reg_, 2));
  for (int use = 0; use < 2; ++use) mark_used(reg_);
  EXPECT_TRUE(take_chance(reg_, 2));
  EXPECT_TRUE(take_chance(reg_, 2));
  EXPECT_FALSE(take_chance(reg_, 2));
  mark_used(reg_);
  EXPECT_TRUE(take_chance(reg_, 2));
  mark_used(reg_);
  for (int chance = 0; chance < 3; ++chance) EXPECT_TRUE(take_chance(reg_, 3)) << chance;
  EXPECT_FALSE(take_chance(reg_, 3));
}

// Which free registrations a thread keeps for itself, and which ones other threads get.

constexpr size_t kKept = 256;                        // kMostSpares
constexpr size_t kTail = 7 * arena::kTailAlignment;  // a size that no other test of this program uses

std::vector<pinrail_registration_t*> allocate(size_t count) {
  std::vector<pinrail_registration_t*> regs(count);
  for (pinrail_registration_t*& reg : regs) {
    EXPECT_TRUE(arena::allocate(kTail, 0, &reg).ok());
  }
  return regs;
}

void free_all(const std::vector<pinrail_registration_t*>& regs) {
  for (pinrail_registration_t* reg : regs) arena::free(reg);
}

std::set<pinrail_registration_t*> as_set(const std::vector<pinrail_registration_t*>& regs) {
  return {regs.begin(), regs.end()};
}

TEST(RegistrationArena, a_thread_keeps_some_free_ones_and_others_get_the_rest) {
  constexpr size_t kFreed = kKept + 50;
  std::promise<std::vector<pinrail_registration_t*>> freed;
  std::promise<void> end;
  std::thread keeper([&] {
    ASSERT_NE(thread::current(), nullptr);
    free_all(allocate(kFreed));  // once more, so that it keeps as many after it has used what it kept
    const std::vector<pinrail_registration_t*> regs = allocate(kFreed);
    free_all(regs);
    freed.set_value(regs);
    end.get_future().wait();
  });
  const std::vector<pinrail_registration_t*> regs = freed.get_future().get();
  const std::vector<pinrail_registration_t*> kept(regs.begin(), regs.begin() + kKept);
  const std::vector<pinrail_registration_t*> others(regs.begin() + kKept, regs.end());

  const std::vector<pinrail_registration_t*> taken = allocate(kFreed - kKept);
  EXPECT_EQ(as_set(taken), as_set(others));
  const std::vector<pinrail_registration_t*> fresh = allocate(kKept);
  for (pinrail_registration_t* reg : fresh) EXPECT_EQ(as_set(regs).count(reg), 0U) << "the keeper has it";

  end.set_value();
  keeper.join();
  const std::vector<pinrail_registration_t*> returned = allocate(kKept);
  EXPECT_EQ(as_set(returned), as_set(kept)) << "an ending thread gives them to the others";
  free_all(taken);
  free_all(fresh);
  free_all(returned);
}

TEST(RegistrationArena, what_a_thread_keeps_is_of_one_size) {
  std::thread([&] {
    ASSERT_NE(thread::current(), nullptr);
    const std::vector<pinrail_registration_t*> regs = allocate(2);
    pinrail_registration_t* larger = nullptr;
    ASSERT_TRUE(arena::allocate(kTail + arena::kTailAlignment, 0, &larger).ok());
    arena::free(regs[0]);
    arena::free(larger);
    arena::free(regs[1]);
    EXPECT_EQ(as_set(allocate(2)), as_set(regs));
    free_all(regs);
  }).join();
}

// What pinrail/component_rcache.h promises: of each of a chunk's registrations, whatever their tails.
TEST(RegistrationArena, an_area_has_all_its_bytes_and_they_are_no_other_ones) {
  for (const size_t bytes : {PINRAIL_AREA_SMALL, PINRAIL_AREA_LARGE}) {
    for (size_t lines : {0, 1, 2, 5, 30}) {
      SCOPED_TRACE(lines);
      std::vector<pinrail_registration_t*> regs(1100);  // more than a chunk has
      for (pinrail_registration_t*& reg : regs) {
        ASSERT_TRUE(arena::allocate(lines * arena::kTailAlignment, bytes, &reg).ok());
        std::memset(arena::area_of(reg), 0xa5, bytes);
      }
      for (const pinrail_registration_t* reg : regs) {
        ASSERT_EQ(state::load(reg) & state::kFlags, 0u);
        ASSERT_EQ(arena::numbered(arena::chunks(), arena::number_of(reg)), reg);
        const std::string area(static_cast<const char*>(arena::area_of(reg)), bytes);
        ASSERT_EQ(area, std::string(bytes, '\xa5'));
      }
      free_all(regs);
    }
  }
}

// registration_arena/A1 and registration_arena/A2.
TEST(RegistrationArena, memory_that_comes_back_is_of_a_later_generation_without_flags_and_zeroed) {
  pinrail_registration_t* const reg = allocate(1)[0];
  const uint64_t generation = generation_of(reg);
  set_range(reg, Span::of(0x10000, 0x1000), reinterpret_cast<pinrail_mpool_t*>(reg), 1);
  mark_used(reg);
  state::publish(reg, state::kIndexed | state::kQuick);
  EXPECT_EQ(kill(reg), Killed::held);
  EXPECT_EQ(drop({reg, generation}), Drop::last);
  arena::free(reg);
  EXPECT_EQ(drop({reg, generation}), Drop::stale);
  EXPECT_EQ(allocate(1)[0], reg);
  EXPECT_EQ(state::load(reg), state::next_generation(generation));
  EXPECT_EQ(reg->base, nullptr);
  EXPECT_EQ(reg->length, 0u);
  EXPECT_EQ(reg->pool, nullptr);
  EXPECT_EQ(reg->traits, 0u);
  EXPECT_FALSE(take_chance(reg, 1));
  free_all({reg});
}

// A process that starts a thread for each task has as many records as threads at a time.
TEST(ThreadRecords, what_a_thread_had_serves_the_next_one_after_its_end) {
  const auto record_of_new_thread = [] { return std::async(std::launch::async, thread::current).get(); };
  std::set<pinrail_thread_t*> records;
  for (int i = 0; i < 100; ++i) records.insert(record_of_new_thread());
  EXPECT_EQ(records.count(nullptr), 0U);
  EXPECT_EQ(records.size(), 1U);
}

// Hints lead to indexed registrations only, may be lost, and are overwritten where they lead nowhere.

constexpr uint64_t hash_of(uint64_t i) { return (i + 1) * 0x9E3779B97F4A7C15u; }

class HintsTest : public testing::Test {
 protected:
  ~HintsTest() override { hints_.free_tables(); }

  // An idle, indexed registration.
  pinrail_registration_t* make() {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, 0, &reg).ok());
    state::publish(reg, state::kIndexed);
    EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
    return reg;
  }
  static void end(pinrail_registration_t* reg) {
    ASSERT_EQ(kill(reg), Killed::owned);
    arena::free(reg);
  }
  void remember(const pinrail_registration_t* reg, uint64_t hash, bool others_have_their_hash = true) {
    hints_.remember(arena::chunks(), reg, hash,
                    [&](const pinrail_registration_t*, uint64_t) { return others_have_their_hash; });
  }
  pinrail_registration_t* find(uint64_t hash) const {
    pinrail_registration_t* found = nullptr;
    hints_.find(arena::chunks(), hash, [&](pinrail_registration_t* reg, uint64_t) {
      found = reg;
      return true;
    });
    return found;
  }

  Hints::Line lines_[1] = {};
  Hints hints_{lines_, 1};
};

TEST_F(HintsTest, what_was_remembered_is_found_by_its_hash_alone) {
  pinrail_registration_t* const reg = make();
  EXPECT_EQ(find(hash_of(1)), nullptr);
  remember(reg, hash_of(1));
  EXPECT_EQ(find(hash_of(1)), reg);
  EXPECT_EQ(find(hash_of(2)), nullptr);
}

TEST_F(HintsTest, what_is_not_indexed_any_more_is_not_passed_on) {
  pinrail_registration_t* const reg = make();
  remember(reg, hash_of(1));
  end(reg);
  EXPECT_EQ(find(hash_of(1)), nullptr);
}

TEST_F(HintsTest, the_word_that_is_passed_on_takes_no_reference_of_a_later_generation) {
  pinrail_registration_t* const reg = make();
  remember(reg, hash_of(1));
  hints_.find(arena::chunks(), hash_of(1), [&](pinrail_registration_t* found, uint64_t word) {
    EXPECT_TRUE(take(found, word));
    EXPECT_EQ(drop({found, state::generation(word)}), Drop::done);
    end(found);
    pinrail_registration_t* const next = make();
    EXPECT_EQ(next, found) << "the memory serves the next one";
    EXPECT_FALSE(take(found, word));
    return true;
  });
}

TEST_F(HintsTest, entries_that_lead_nowhere_are_overwritten_first) {
  std::vector<pinrail_registration_t*> regs;
  for (uint64_t i = 0; i < Hints::kEntries; ++i) {
    regs.push_back(make());
    remember(regs[i], hash_of(i));
  }
  EXPECT_EQ(kill(regs[3]), Killed::owned);
  pinrail_registration_t* const next = make();
  remember(next, hash_of(100));
  EXPECT_EQ(find(hash_of(100)), next);
  for (uint64_t i = 0; i < Hints::kEntries; ++i) EXPECT_EQ(find(hash_of(i)), i == 3 ? nullptr : regs[i]);
}

TEST_F(HintsTest, entries_whose_registrations_have_another_hash_by_now_are_overwritten) {
  for (uint64_t i = 0; i < 4 * Hints::kEntries; ++i) remember(make(), hash_of(i), false);
  size_t found = 0;
  for (uint64_t i = 0; i < 4 * Hints::kEntries; ++i) found += find(hash_of(i)) != nullptr ? 1 : 0;
  EXPECT_EQ(found, Hints::kEntries) << "nothing that counts was lost, so the table has not grown";
}

TEST_F(HintsTest, a_table_that_loses_what_is_indexed_grows) {
  std::vector<pinrail_registration_t*> regs;
  for (uint64_t i = 0; i < 1000; ++i) regs.push_back(make());
  for (int round = 0; round < 8; ++round) {
    for (uint64_t i = 0; i < regs.size(); ++i) {
      if (find(hash_of(i)) != regs[i]) remember(regs[i], hash_of(i));
    }
  }
  size_t found = 0;
  for (uint64_t i = 0; i < regs.size(); ++i) found += find(hash_of(i)) == regs[i] ? 1 : 0;
  EXPECT_GT(found, regs.size() * 9 / 10);
}

}  // namespace
}  // namespace pinrail
