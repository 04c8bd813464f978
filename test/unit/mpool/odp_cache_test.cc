// SPDX-License-Identifier: BSD-3-Clause
// odp_cache_test.cc - evictors and pools that end take registrations of one list: each is taken by one of them.
#include "components/mpool/odp/odp_cache.h"

#include <gtest/gtest.h>

namespace pinrail::odp {
namespace {

class OdpCache : public testing::Test {
 protected:
  // A registration of the pool, with one reference.
  pinrail_registration_t* add_held(void* pool) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, sizeof(cache_list::Area), &reg).ok());
    area_of(reg).owner = pool;
    area_of(reg).charge = 4096;
    EXPECT_TRUE(cache_.admit(reg).ok());
    state::publish(reg, state::kIndexed);
    return reg;
  }
  pinrail_registration_t* add(void* pool) {
    pinrail_registration_t* const reg = add_held(pool);
    EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
    return reg;
  }

  int ending_ = 0, other_ = 0;  // stand for two pools
  Cache cache_{mpool::WantedLimits{}};
};

TEST_F(OdpCache, what_destroy_takes_no_evictor_finds) {
  pinrail_registration_t* const own = add(&ending_);
  EXPECT_EQ(cache_.take_any_of(&ending_), own);
  EXPECT_EQ(cache_.take_victim(0), nullptr);
  EXPECT_EQ(cache_.take_any_of(&ending_), nullptr);
}

TEST_F(OdpCache, what_an_evictor_takes_is_not_found_by_destroy) {
  pinrail_registration_t* const own = add(&ending_);
  EXPECT_EQ(cache_.take_victim(0), own);
  EXPECT_EQ(cache_.take_any_of(&ending_), nullptr);
  cache_.dismiss_victim(4096);
}

TEST_F(OdpCache, destroy_takes_what_is_referenced_and_leaves_the_neighbours) {
  pinrail_registration_t* const neighbours = add(&other_);
  pinrail_registration_t* const held = add_held(&ending_);
  EXPECT_EQ(cache_.take_any_of(&ending_), held);
  EXPECT_EQ(cache_.take_any_of(&ending_), nullptr);
  EXPECT_EQ(cache_.take_any_of(&other_), neighbours);
}

TEST_F(OdpCache, what_was_hit_is_passed_by_once_and_what_is_held_always) {
  pinrail_registration_t* const held = add_held(&other_);
  pinrail_registration_t* const hit = add(&other_);
  pinrail_registration_t* const newest = add(&other_);
  mark_used(hit);
  EXPECT_EQ(cache_.take_victim(0), newest);
  EXPECT_EQ(cache_.take_victim(0), hit);
  EXPECT_EQ(cache_.take_victim(0), nullptr);
  EXPECT_TRUE(is_indexed(held));
  cache_.dismiss_victim(4096);
  cache_.dismiss_victim(4096);
}

TEST_F(OdpCache, where_all_were_hit_the_oldest_goes) {
  pinrail_registration_t* const oldest = add(&other_);
  pinrail_registration_t* const newest = add(&other_);
  mark_used(oldest);
  mark_used(newest);
  EXPECT_EQ(cache_.take_victim(0), oldest);
  cache_.dismiss_victim(4096);
}

TEST_F(OdpCache, the_budget_is_repaid_when_the_device_has_forgotten_it) {
  add(&ending_);
  cache_.take_any_of(&ending_);
  EXPECT_EQ(cache_.usage().bytes, 4096u);
  cache_.repay(4096);
  EXPECT_EQ(cache_.usage().bytes, 0u);
  EXPECT_EQ(cache_.usage().count, 0u);
}

}  // namespace
}  // namespace pinrail::odp
