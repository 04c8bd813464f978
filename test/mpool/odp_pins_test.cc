// SPDX-License-Identifier: BSD-3-Clause
// What mpool/odp keeps for its holder: persistent registrations, and the pins of pinrail/pin.h.
#include <pinrail/pin.h>

#include "test/mpool/odp_under_test.h"

namespace pinrail::test {
namespace {

const pinrail_range_t kRange = {reinterpret_cast<void*>(kBase), kPage};  // NOLINT(performance-no-int-to-ptr)

class OdpPins : public Odp {
 protected:
  pinrail_status_t pin() { return pinrail_mpool_prepin(pool_->get(), &kRange, 1, kRead, nullptr, nullptr); }
  pinrail_status_t unpin() { return pinrail_mpool_unpin(pool_->get(), &kRange, 1, kRead); }
};

TEST_F(OdpPins, a_pinned_tile_serves_requests_though_wider_rights_came_and_were_evicted) {
  start(paging(), at_most(2));
  ASSERT_EQ(pin(), PINRAIL_SUCCESS);
  pool_->use(kBase, kPage, kWrite);
  pool_->use(kBase + 8 * kTile, kPage);
  EXPECT_TRUE(pool_->has(kBase, kPage));
  EXPECT_EQ(unpin(), PINRAIL_SUCCESS);
}

TEST_F(OdpPins, a_pinned_tile_serves_requests_though_longer_ranges_came_and_were_evicted) {
  start(paging(), at_most(2));
  ASSERT_EQ(pin(), PINRAIL_SUCCESS);
  pool_->use(kBase, 2 * kTile);
  pool_->use(kBase + 8 * kTile, kPage);
  EXPECT_TRUE(pool_->has(kBase, kPage));
  EXPECT_EQ(unpin(), PINRAIL_SUCCESS);
}

TEST_F(OdpPins, the_last_release_of_a_persistent_one_ends_it) {
  start();
  const pinrail_handle_t own = pool_->must(kBase, kPage, kRead, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(own.reg->length, kTile);
  const pinrail_handle_t hit = pool_->must(kBase + kPage, kPage);
  EXPECT_EQ(hit.reg, own.reg);
  drop(own);
  EXPECT_TRUE(pool_->has(kBase, kPage)) << "it is still in use";
  drop(hit);
  EXPECT_FALSE(pool_->has(kBase, kPage));
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(OdpPins, a_persistent_request_hits_no_tile_that_may_be_evicted) {
  start();
  pool_->use(kBase, kPage);
  const Held own = pool_->hold(kBase, kPage, kRead, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(device_->register_calls(), 2u);
  const Held again = pool_->hold(kBase, kPage, kRead, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(again.reg, own.reg);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 1u) << "the other one was displaced";
}

TEST_F(OdpPins, all_memory_at_once_can_be_pinned_whatever_the_limit_of_bytes) {
  start(paging(PINRAIL_ON_DEMAND_IMPLICIT), at_most_bytes(kPage));
  const pinrail_range_t large = {kRange.addr, kTile};
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), &large, 1, kRead, nullptr, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_unpin(pool_->get(), &large, 1, kRead), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
