// SPDX-License-Identifier: BSD-3-Clause
// The gc thread beside callers, events and pools that come and go.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "test/support/library.h"
#include "test/support/tasks.h"
#include "test/support/team.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr uintptr_t kStride = 0x1000000;

Settings hasty() { return {{"mpool_grdma_gc_thread", "auto"}, {"mpool_grdma_gc_limit", "8K"}}; }

TEST(GcThreadStress, a_pool_is_destroyed_while_it_works_and_no_device_is_called_afterwards) {
  Library library(hasty());
  for (int round = 0; round < 300; ++round) {
    fake::FakeRegistrar device;
    Pool pool(device);
    std::atomic<bool> is_over{false};
    std::atomic<int> late{0};
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (is_over) ++late;
    });
    for (uintptr_t i = 0; i < 20; ++i) pool.use(kBase + 2 * i * kPage, kPage);
    report(kBase, 64 * kPage);
    if (round % 2 == 0) sched_yield();
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
    is_over = true;
    ASSERT_EQ(device.live_count(), 0u);
    ASSERT_EQ(late.load(), 0);
    ASSERT_EQ(device.violations(), std::vector<std::string>{});
  }
}

TEST(GcThreadStress, beside_callers_and_events) {
  Library library(hasty());
  fake::FakeRegistrar device;
  Pool pool(device);
  std::atomic<uint64_t> wrong{0};
  on_threads(uintptr_t{3}, [&](uintptr_t t) {
    for (uintptr_t i = 0; i < 4000; ++i) {
      const uintptr_t base = kBase + t * kStride + (i % 64) * 8 * kPage;
      pinrail_handle_t one{}, two{};
      if (pool.reg(base, 4 * kPage, &one) != PINRAIL_SUCCESS) ++wrong;
      if (pool.reg(base, kPage, &two) != PINRAIL_SUCCESS) ++wrong;
      if (i % 3 == 0) report(base, kPage);
      if (!device.is_live(one.reg) || !device.is_live(two.reg)) ++wrong;
      if (pinrail_mpool_deregister(one) != PINRAIL_SUCCESS) ++wrong;
      if (pinrail_mpool_deregister(two) != PINRAIL_SUCCESS) ++wrong;
    }
  });
  EXPECT_EQ(wrong.load(), 0u);
  report(kBase, 4 * kStride);
  EXPECT_TRUE(comes_true([&] { return device.live_count() == 0; }));
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(device.violations(), std::vector<std::string>{});
}

TEST(GcThreadStress, the_library_ends_whatever_it_is_doing) {
  for (int round = 0; round < 100; ++round) {
    Library library(hasty());
    fake::FakeRegistrar device;
    Pool pool(device);
    pool.use(kBase, static_cast<size_t>(1 + round % 8) * kPage);
    report(kBase, kPage);
    if (round % 3 == 0) usleep(500);
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
    ASSERT_EQ(device.live_count(), 0u);
  }
}

}  // namespace
}  // namespace pinrail::test
