// SPDX-License-Identifier: BSD-3-Clause
// Whose turn it is to be evicted: the hand, the chances of what was hit, and what is parked because it is held.
#include "framework/mpool/pool_registrations.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace pinrail::mpool {
namespace {

using Regs = std::vector<pinrail_registration_t*>;

class RegistrationsTest : public ::testing::Test {
 protected:
  // In the array, indexed and idle.
  pinrail_registration_t* add(size_t length = 4096) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
    set_range(reg, Span::of(0x10000, length), nullptr, 0);
    area_of(reg).place = Registrations::kNowhere;
    EXPECT_TRUE(all_.reserve(reg));
    all_.add(reg);
    state::publish(reg, state::kIndexed);
    EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
    return reg;
  }
  Regs add_some(size_t count) {
    Regs regs(count);
    for (pinrail_registration_t*& reg : regs) reg = add();
    return regs;
  }
  static void take_one(pinrail_registration_t* reg) { EXPECT_TRUE(take(reg, state::load(reg))); }
  // As a pool does.
  void drop_one(pinrail_registration_t* reg) {
    const pinrail_handle_t handle = {reg, generation_of(reg)};
    if (drop(handle) == Drop::idle) all_.unpark(handle);
  }
  // The next victim, out of the array. NULL: there is none.
  pinrail_registration_t* evict() {
    pinrail_registration_t* const victim = all_.retire_next([](const pinrail_registration_t*) { return true; });
    if (victim != nullptr) all_.remove(victim);
    EXPECT_EQ(all_.check(), nullptr) << all_.check();
    return victim;
  }
  Regs evict_all() {
    Regs victims;
    while (pinrail_registration_t* const victim = evict()) victims.push_back(victim);
    return victims;
  }

  // The order in which the hand takes them, while all keep their places.
  Regs retire_all() {
    Regs victims;
    while (pinrail_registration_t* const victim = all_.retire_next([](const pinrail_registration_t*) { return true; }))
      victims.push_back(victim);
    return victims;
  }

  Registrations all_{arena::chunks()};
};

// The place of a victim is filled by the newest, whose turn is the last one then.
TEST_F(RegistrationsTest, the_oldest_half_goes_first) {
  const Regs regs = add_some(8);
  const Regs victims = evict_all();
  ASSERT_EQ(victims.size(), regs.size());
  for (size_t i = 0; i < regs.size() / 2; ++i) EXPECT_EQ(victims[i], regs[i]) << i;
  EXPECT_EQ(all_.size(), 0u);
  EXPECT_EQ(all_.active_bytes(), 0u);
}

// R7: the hand passes each once in a round.
TEST_F(RegistrationsTest, the_smaller_one_that_was_hit_is_the_more_often_it_is_passed_by) {
  Regs regs;
  for (const size_t kib : {4, 15, 16, 63, 64, 255, 256, 4096}) regs.push_back(add(kib * 1024));
  Regs order;
  for (const size_t i : {6, 7, 4, 5, 2, 3, 0, 1}) order.push_back(regs[i]);
  for (pinrail_registration_t* reg : regs) mark_used(reg);
  pinrail_registration_t* const never_hit = add();
  order.insert(order.begin(), never_hit);
  EXPECT_EQ(retire_all(), order);
}

// One request passes by 1,024: it would walk over all that were hit otherwise, four times.
TEST_F(RegistrationsTest, a_search_does_not_walk_over_all_that_were_hit) {
  const Regs regs = add_some(4096);
  for (pinrail_registration_t* reg : regs) mark_used(reg);
  EXPECT_EQ(evict(), regs[1024]);
  EXPECT_EQ(regs[1025]->used, kHit) << "no further one was looked at";
}

// R9: other threads hit all the time.
TEST_F(RegistrationsTest, what_is_hit_during_the_search_is_found_in_the_end) {
  const Regs regs = add_some(2);
  size_t looks = 0;
  const auto hit_again = [&](pinrail_registration_t* reg) {
    mark_used(reg);
    return ++looks != 0;
  };
  EXPECT_NE(all_.retire_next(hit_again), nullptr);
  EXPECT_LE(looks, 5 * regs.size());
}

// grdma keeps a chain of numbers there of what an insert has displaced.
TEST_F(RegistrationsTest, what_dies_during_the_search_keeps_what_its_owner_stores) {
  const Regs regs = add_some(2);
  constexpr uint32_t kNumber = 5000;
  const auto displace_first = [&](pinrail_registration_t* reg) {
    if (reg == regs[0] && kill(reg) == Killed::owned) reg->used = kNumber;
    return true;
  };
  EXPECT_EQ(all_.retire_next(displace_first), regs[1]);
  EXPECT_EQ(regs[0]->used, kNumber);
}

TEST_F(RegistrationsTest, one_that_takes_the_place_of_the_victim_comes_last) {
  const Regs regs = add_some(3);
  pinrail_registration_t* const victim = all_.retire_next([](const pinrail_registration_t*) { return true; });
  ASSERT_EQ(victim, regs[0]);
  pinrail_registration_t* reg = nullptr;
  ASSERT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  set_range(reg, Span::of(0x10000, 3 * 4096), nullptr, 0);
  all_.replace(victim, reg, reg->length - victim->length);
  state::publish(reg, state::kIndexed);
  EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
  EXPECT_EQ(area_of(victim).place, Registrations::kNowhere);
  EXPECT_EQ(all_.size(), 3u);
  EXPECT_EQ(all_.active_bytes(), 5u * 4096);
  EXPECT_EQ(retire_all(), (Regs{regs[1], regs[2], reg}));
}

// R9: it fills two holes, so the hand passes by it twice before it takes the last chance away.
TEST_F(RegistrationsTest, what_fills_the_places_of_what_is_parked_is_found_in_the_end) {
  const Regs regs = add_some(8);
  const auto next_if = [&](const pinrail_registration_t* wanted) {
    return all_.retire_next([&](const pinrail_registration_t* reg) { return reg == wanted; });
  };
  ASSERT_EQ(next_if(regs[5]), regs[5]);  // the hand stands behind it
  take_one(regs[6]);
  take_one(regs[4]);
  mark_used(regs[7]);
  EXPECT_EQ(next_if(regs[7]), regs[7]) << "the others are of pools that may not be called";
}

TEST_F(RegistrationsTest, one_that_is_taken_again_before_it_is_brought_back_is_parked_again) {
  pinrail_registration_t* const reg = add();
  take_one(reg);
  ASSERT_EQ(evict(), nullptr);
  const pinrail_handle_t handle = {reg, generation_of(reg)};
  ASSERT_EQ(drop(handle), Drop::idle);
  take_one(reg);
  all_.unpark(handle);
  EXPECT_EQ(all_.active(), 1u);
  EXPECT_EQ(evict(), nullptr);
  EXPECT_EQ(all_.active(), 0u);
  drop_one(reg);
  EXPECT_EQ(evict(), reg);
}

TEST_F(RegistrationsTest, a_handle_of_another_generation_or_of_what_left_the_array_brings_nothing_back) {
  pinrail_registration_t* const reg = add();
  take_one(reg);
  ASSERT_EQ(evict(), nullptr);
  const pinrail_handle_t handle = {reg, generation_of(reg)};
  all_.unpark({reg, state::next_generation(handle.generation)});
  EXPECT_EQ(all_.active(), 0u);
  EXPECT_NE(state::load(reg) & state::kNotify, 0u);
  ASSERT_EQ(drop(handle), Drop::idle);
  ASSERT_EQ(kill(reg), Killed::owned);
  all_.remove(reg);
  all_.unpark(handle);
  EXPECT_EQ(all_.size(), 0u);
  EXPECT_EQ(all_.active(), 0u);
}

TEST_F(RegistrationsTest, what_is_being_made_is_neither_parked_nor_a_victim) {
  pinrail_registration_t* reg = nullptr;
  ASSERT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  ASSERT_TRUE(all_.reserve(reg));
  all_.add(reg);
  EXPECT_EQ(evict(), nullptr);
  EXPECT_EQ(all_.active(), 1u);
}

TEST_F(RegistrationsTest, one_of_another_owner_keeps_its_chances) {
  const Regs regs = add_some(2);
  mark_used(regs[0]);
  EXPECT_EQ(all_.retire_next([&](const pinrail_registration_t* reg) { return reg == regs[1]; }), regs[1]);
  EXPECT_TRUE(take_chance(regs[0], 1));
}

TEST_F(RegistrationsTest, a_visit_meets_what_is_idle_and_parks_what_is_held) {
  const Regs regs = add_some(5);
  take_one(regs[1]);
  take_one(regs[4]);
  size_t seen = 0;
  EXPECT_FALSE(all_.visit_idle([&](const pinrail_registration_t*) { return ++seen == 4; }));
  EXPECT_EQ(seen, 3u);
  EXPECT_EQ(all_.active(), 3u);
  EXPECT_TRUE(all_.visit_idle([](const pinrail_registration_t*) { return true; }));
  EXPECT_EQ(all_.check(), nullptr) << all_.check();
}

// pool_registrations/M1 and pool_registrations/M2, at random: what is idle can be evicted, each once, and what is held
// cannot.
TEST_F(RegistrationsTest, random_steps_keep_the_invariants) {
  std::mt19937 random(3);
  Regs idle, held;
  const auto pick = [&](Regs* from) {
    std::swap((*from)[random() % from->size()], from->back());
    pinrail_registration_t* const reg = from->back();
    from->pop_back();
    return reg;
  };
  for (int step = 0; step < 20000; ++step) {
    const unsigned what = random() % 10;
    if (what < 3) {
      idle.push_back(add());
    } else if (what < 5 && !idle.empty()) {
      held.push_back(pick(&idle));
      take_one(held.back());
    } else if (what < 7 && !held.empty()) {
      idle.push_back(pick(&held));
      drop_one(idle.back());
    } else if (what == 7 && !idle.empty()) {
      mark_used(idle[random() % idle.size()]);
    } else if (what == 8 && !held.empty()) {
      pinrail_registration_t* const reg = pick(&held);
      ASSERT_EQ(kill(reg), Killed::held);
      ASSERT_EQ(drop({reg, generation_of(reg)}), Drop::last);
      all_.remove(reg);
      arena::free(reg);
    } else if (what == 9) {
      pinrail_registration_t* const victim = evict();
      ASSERT_EQ(victim == nullptr, idle.empty());
      if (victim == nullptr) continue;
      const auto at = std::find(idle.begin(), idle.end(), victim);
      ASSERT_NE(at, idle.end());
      idle.erase(at);
      arena::free(victim);
    }
    ASSERT_EQ(all_.size(), idle.size() + held.size());
    ASSERT_EQ(all_.active_bytes(), all_.active() * 4096);
  }
  EXPECT_EQ(evict_all().size(), idle.size());
  for (pinrail_registration_t* reg : held) drop_one(reg);
  EXPECT_EQ(evict_all().size(), held.size());
}

}  // namespace
}  // namespace pinrail::mpool
