// SPDX-License-Identifier: BSD-3-Clause
// odp_cache_test.cc - evictors and pools that end take registrations of one list: each is taken by one of them.
#include "components/mpool/odp/odp_cache.h"

#include <gtest/gtest.h>

namespace pinrail::odp {
namespace {

class OdpCache : public testing::Test {
 protected:
  // A registration of the pool: idle, or with one reference.
  pinrail_registration_t* add(void* pool, int references) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, PINRAIL_COUNTING_SHARED, &reg).ok());
    area_of(reg).owner = pool;
    area_of(reg).charge = 4096;
    EXPECT_TRUE(cache_.admit(reg).ok());
    state::set_own(reg, state::kIndexed, references);
    return reg;
  }
  static bool is_dead(const pinrail_registration_t* reg) { return (state::load(reg) & state::kDead) != 0; }

  int ending_ = 0, other_ = 0;  // stand for two pools
  Cache cache_{mpool::WantedLimits{}};
};

TEST_F(OdpCache, what_destroy_takes_is_dead_and_no_evictor_finds_it) {
  pinrail_registration_t* const own = add(&ending_, 0);
  EXPECT_EQ(cache_.take_any_of(&ending_), own);
  EXPECT_TRUE(is_dead(own));
  EXPECT_EQ(cache_.take_victim(0, 1), nullptr);
  EXPECT_EQ(cache_.take_any_of(&ending_), nullptr);
}

TEST_F(OdpCache, what_an_evictor_takes_is_not_found_by_destroy) {
  pinrail_registration_t* const own = add(&ending_, 0);
  EXPECT_EQ(cache_.take_victim(0, 1), own);
  EXPECT_EQ(cache_.take_any_of(&ending_), nullptr);
  cache_.dismiss_victim(4096);
}

TEST_F(OdpCache, destroy_takes_what_is_referenced_and_leaves_the_neighbours) {
  pinrail_registration_t* const neighbours = add(&other_, 0);
  pinrail_registration_t* const held = add(&ending_, 1);
  EXPECT_EQ(cache_.take_any_of(&ending_), held);
  EXPECT_TRUE(is_dead(held));
  EXPECT_EQ(cache_.take_any_of(&ending_), nullptr);
  EXPECT_FALSE(is_dead(neighbours));
}

TEST_F(OdpCache, the_budget_is_repaid_when_the_device_has_forgotten_it) {
  add(&ending_, 0);
  cache_.take_any_of(&ending_);
  EXPECT_EQ(cache_.usage().bytes, 4096u);
  cache_.repay(4096);
  EXPECT_EQ(cache_.usage().bytes, 0u);
  EXPECT_EQ(cache_.usage().count, 0u);
}

}  // namespace
}  // namespace pinrail::odp
