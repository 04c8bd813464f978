// SPDX-License-Identifier: BSD-3-Clause
// What is dead and on its way back to the device, when something goes wrong there: more dies than gc_limit permits, the
// device is slow or calls back, or a thread ends inside the registrar.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "test/support/leaving_registrar.h"
#include "test/support/library.h"
#include "test/support/tasks.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Settings with_gc_thread(const std::string& gc_limit) {
  return {{"mpool_grdma_gc_thread", "auto"}, {"mpool_grdma_gc_limit", gc_limit}};
}

// E4: events wake the gc thread when they exceed the limit, and not again while it drains.
TEST(DeadAboveTheLimit, goes_back_at_once_though_it_died_during_a_drain) {
  const Library library(with_gc_thread("64K"));
  fake::FakeRegistrar device;
  const Pool pool(device);
  auto least = Clock::duration::max();
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> is_inside{false}, may_go{false};
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (is_inside.exchange(true)) return;
      while (!may_go) std::this_thread::yield();
    });
    pool.use(kBase, 64 * kPage);
    for (uintptr_t i = 0; i < 16; ++i) pool.use(2 * kBase + i * 64 * kPage, 64 * kPage);
    report(kBase, kPage);
    ASSERT_TRUE(comes_true([&] { return is_inside.load(); }));
    report(2 * kBase, 16 * 64 * kPage);
    const auto began = Clock::now();
    may_go = true;
    EXPECT_TRUE(comes_true([&] { return device.live_count() == 0; }));
    least = std::min(least, Clock::now() - began);
    device.on_deregister(nullptr);
  }
  EXPECT_LT(least, milliseconds(90)) << "100 ms is the time for what is below the limit";
}

// E4: a call has a batch in its hands while the gc thread comes and takes the others.
TEST(DeadAboveTheLimit, goes_back_at_once_though_a_call_has_put_it_back) {
  const Library library(with_gc_thread("64K"));
  fake::FakeRegistrar device;
  const Pool pool(device);
  constexpr uintptr_t kMany = 3000;
  auto least = Clock::duration::max();
  for (int round = 0; round < 5; ++round) {
    for (uintptr_t i = 0; i < kMany; ++i) pool.use(kBase + i * 2 * kPage, kPage);
    pool.use(kBase / 2, kPage);
    const pinrail_handle_t held = pool.must(kBase + 2 * kMany * kPage, kPage);
    std::atomic<int> inside{0};
    std::atomic<bool> gc_may_go{false}, may_go{false};
    const auto self = std::this_thread::get_id();
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (std::this_thread::get_id() == self) return;
      const int before = inside++;
      while (before == 0 && !gc_may_go) std::this_thread::yield();
      while (before == 1 && !may_go) std::this_thread::yield();
    });
    report(kBase / 2, kPage);
    ASSERT_TRUE(comes_true([&] { return inside == 1; })) << "the gc thread is at the device";
    report(kBase, 2 * kMany * kPage + kPage);
    std::thread dropper([&] { drop(held); });
    ASSERT_TRUE(comes_true([&] { return inside == 2; }));
    gc_may_go = true;
    std::this_thread::sleep_for(milliseconds(30));  // the gc thread finds nothing
    const auto began = Clock::now();
    may_go = true;
    EXPECT_TRUE(comes_true([&] { return device.live_count() == 0; }));
    least = std::min(least, Clock::now() - began);
    dropper.join();
    device.on_deregister(nullptr);
  }
  EXPECT_LT(least, milliseconds(90));
}

// R12: what an insert displaced is deregistered one by one; an event may come before the turn of each.
TEST(Displaced, is_in_reach_of_events_until_its_turn) {
  const Library library;
  fake::FakeRegistrar device;
  const Pool pool(device);
  std::atomic<int> calls{0};
  uintptr_t second = 0;
  device.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (calls++ != 0) return;
    second = reinterpret_cast<uintptr_t>(reg->base) == kBase ? kBase + 2 * kPage : kBase;
    report(second, kPage);
  });
  pool.use(kBase, kPage);
  pool.use(kBase + 2 * kPage, kPage);
  const pinrail_handle_t large = pool.must(kBase, 4 * kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(device.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  drop(large);
  EXPECT_TRUE(pool.invariants_hold());
}

// R3, R5: inside a registrar's function what is cached is a hit, also during an eviction, or while too much is dead for
// the short way.
TEST(InsideTheRegistrar, what_is_cached_is_hit_during_an_eviction) {
  const Library library;
  fake::FakeRegistrar device;
  constexpr uint64_t kMany = 64;
  const Pool pool(device, {1, PINRAIL_UNSET, kMany});
  for (uintptr_t i = 0; i < kMany; ++i) pool.use(kBase + i * 2 * kPage, kPage);
  bool is_first = true;
  device.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (!std::exchange(is_first, false)) return;
    const auto gone = reinterpret_cast<uintptr_t>(reg->base);
    for (uintptr_t i = 0; i < kMany; ++i) {
      const uintptr_t base = kBase + i * 2 * kPage;
      if (base != gone) pool.use(base, kPage);
    }
  });
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device.register_calls(), kMany);
  EXPECT_EQ(pool.stats().evictions, 1u);
}

TEST(InsideTheRegistrar, a_cached_range_is_hit_while_too_much_is_dead) {
  const Library library(Settings{{"mpool_grdma_gc_limit", "4K"}});
  fake::FakeRegistrar device;
  const Pool pool(device, {1, PINRAIL_UNSET, 2});
  const Held held = pool.hold(kBase, 64 * kPage);
  pool.use(kBase + 100 * kPage, 4 * kPage);
  bool is_first = true;
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (std::exchange(is_first, false)) pool.use(kBase + kPage, kPage);
  });
  report(kBase + 100 * kPage, kPage);
  pool.use(kBase + 200 * kPage, kPage);
  EXPECT_FALSE(is_first);
  EXPECT_EQ(device.register_calls(), 3u);
}

}  // namespace
}  // namespace pinrail::test
