// SPDX-License-Identifier: BSD-3-Clause
// The state word of a registration: each way to change it, from each state in which it may be.
#include "base/registration/registration.h"

#include <gtest/gtest.h>

#include "base/registration/registration_arena.h"

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

}  // namespace
}  // namespace pinrail
