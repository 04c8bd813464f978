// SPDX-License-Identifier: BSD-3-Clause
// mpool/grdma: with which rights and traits a range is registered, and what that answers.
#include <gtest/gtest.h>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

class GrdmaRights : public ::testing::Test {
 protected:
  explicit GrdmaRights(const Settings& settings = {}) : library_(settings) {}
  void TearDown() override { EXPECT_EQ(fake_.violations(), std::vector<std::string>{}); }
  const Library library_;
  fake::FakeRegistrar fake_;
};

// R4: a miss registers with all rights, so that one registration answers requests for any.
TEST_F(GrdmaRights, one_registration_serves_all_rights) {
  Pool pool(fake_);
  for (uint32_t rights = 0; rights <= PINRAIL_RIGHTS_MASK; ++rights) pool.use(kBase, kPage, rights);
  EXPECT_EQ(fake_.register_calls(), 1u);
  EXPECT_EQ(fake_.live()[0].rights, uint32_t{PINRAIL_RIGHTS_MASK});
}

TEST_F(GrdmaRights, an_exact_pool_registers_with_the_rights_of_the_request) {
  Pool pool(fake_, {1, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_POOL_EXACT});
  EXPECT_EQ(pool.must(kBase, kPage, 2).reg->rights, 2u);
}

TEST_F(GrdmaRights, what_is_not_cached_has_the_rights_of_the_request) {
  Pool pool(fake_);
  EXPECT_EQ(pool.must(kBase, kPage, 2, PINRAIL_FLAG_CACHE_BYPASS).reg->rights, 2u);
}

class GrdmaAsked : public GrdmaRights {
 protected:
  GrdmaAsked() : GrdmaRights({{"mpool_grdma_rights", "asked"}}) {}
};

TEST_F(GrdmaAsked, other_rights_are_registered_beside_and_neither_displaces_the_other) {
  Pool pool(fake_);
  for (int i = 0; i < 3; ++i) {
    pool.use(kBase, kPage, 1);
    pool.use(kBase, kPage, 2);
  }
  EXPECT_EQ(fake_.register_calls(), 2u);
}

TEST_F(GrdmaAsked, more_rights_make_a_registration_that_displaces_the_narrow_one) {
  Pool pool(fake_);
  pool.use(kBase, 2 * kPage, 1);
  const pinrail_handle_t wide = pool.must(kBase, 2 * kPage, 3);
  EXPECT_EQ(wide.reg->rights, 3u);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 1u) << "the dominated one was idle, so it is gone";
  EXPECT_EQ(pool.must(kBase, 1, 3).reg, wide.reg);
}

TEST_F(GrdmaAsked, a_narrow_one_that_is_held_lives_until_it_is_released) {
  Pool pool(fake_);
  const pinrail_handle_t narrow = pool.must(kBase, 2 * kPage, 1);
  const pinrail_handle_t wide = pool.must(kBase, 2 * kPage, 3);
  EXPECT_TRUE(fake_.is_live(narrow.reg));
  EXPECT_EQ(pool.must(kBase, 1, 1).reg, wide.reg);
  drop(narrow);
  EXPECT_EQ(fake_.live_count(), 1u);
}

TEST_F(GrdmaAsked, an_old_one_that_reaches_further_is_kept_beside_the_wider_one) {
  Pool pool(fake_);
  pool.use(kBase, 4 * kPage, 1);
  pool.use(kBase, 2 * kPage, 2);
  EXPECT_EQ(fake_.live_count(), 2u);
  EXPECT_TRUE(pool.has(kBase + 3 * kPage, kPage, 1));
  EXPECT_FALSE(pool.has(kBase + 3 * kPage, kPage, 2));
}

// R4: as of memory that may only be read. The refusal is remembered for the neighbourhood until an event ends what is
// registered there, because other memory may follow.
TEST_F(GrdmaRights, a_device_that_refuses_all_rights_gets_what_was_asked_and_is_not_asked_again_there) {
  Pool pool(fake_);
  pool.use(3 * kBase, kPage);
  fake_.fail_register(1, PINRAIL_ERR_PERM);
  const pinrail_handle_t handle = pool.must(kBase, kPage, 2);
  EXPECT_EQ(handle.reg->rights, 2u);
  EXPECT_EQ(fake_.register_calls(), 3u);
  pool.use(kBase + kPage, kPage, 2);
  EXPECT_EQ(fake_.register_calls(), 4u);
  EXPECT_EQ(pool.must(2 * kBase, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK}) << "elsewhere";
  report(kBase, kPage);
  EXPECT_EQ(pool.must(kBase, kPage, 2).reg->rights, uint32_t{PINRAIL_RIGHTS_MASK}) << "other memory";
}

TEST(GrdmaRefusing, a_device_without_atomics_refuses_one_call) {
  fake::FakeOptions options;
  options.refused_rights = PINRAIL_ACCESS_REMOTE_ATOMIC;
  const Library library;
  fake::FakeRegistrar fake(options);
  Pool pool(fake);
  for (uintptr_t i = 1; i <= 4; ++i) pool.use(i * kBase, kPage, 2);
  EXPECT_EQ(fake.register_calls(), 5u);
  EXPECT_EQ(fake.live()[3].rights, 7u);
}

TEST_F(GrdmaRights, traits_never_mix) {
  Pool pool(fake_);
  pool.use(kBase, kPage, 1 | PINRAIL_TRAIT_RELAXED_ORDERING);
  EXPECT_FALSE(pool.has(kBase, kPage, 1));
  EXPECT_TRUE(pool.has(kBase, kPage, 1 | PINRAIL_TRAIT_RELAXED_ORDERING));
}

}  // namespace
}  // namespace pinrail::test
