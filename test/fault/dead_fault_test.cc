// SPDX-License-Identifier: BSD-3-Clause
// What is dead and on its way back to the device, when something goes wrong there: more dies than gc_limit permits, the
// device is slow or calls back, a thread ends inside the registrar, or a find only seems to hold it.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/registration/references.h"
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

// The library's record of a thread, which it hands to the pool.
pinrail_thread_t* thread_of(const Pool& pool) {
  static pinrail_thread_t* seen = nullptr;
  static const pinrail_mpool_ops_t* ops = nullptr;
  ops = pool.get()->ops;
  pinrail_mpool_ops_t mine = *ops;
  mine.progress = [](void* module, pinrail_thread_t* thread) {
    seen = thread;
    return ops->progress(module, thread);
  };
  pool.get()->ops = &mine;
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  pool.get()->ops = ops;
  return seen;
}

// Finds that have counted their references and have not looked at the state words yet. They will roll back.
class Finds {
 public:
  Finds(const Pool& pool, std::vector<pinrail_registration_t*> regs)
      : thread_(thread_of(pool)), regs_(std::move(regs)) {}
  void count() const {
    for (const pinrail_registration_t* reg : regs_) EXPECT_TRUE(references::count(thread_, reg, 1));
  }
  void roll_back() const {
    for (const pinrail_registration_t* reg : regs_) references::roll_back(thread_, reg);
  }

 private:
  pinrail_thread_t* const thread_;
  const std::vector<pinrail_registration_t*> regs_;
};

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

// E4: a call that sums some has all in its hands while the gc thread comes, and puts the rest back.
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
    std::thread dropper([&] { EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS); });
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
  EXPECT_EQ(pinrail_mpool_deregister(large), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
}

// The same while it waits for the next drain, because the thread has ended inside the registrar.
TEST(Displaced, is_in_reach_of_events_when_the_thread_has_ended_before_its_turn) {
  const Library library;
  fake::FakeRegistrar device;
  const Pool pool(device);
  std::atomic<bool> has_left{false};
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (!has_left.exchange(true)) pthread_exit(nullptr);
  });
  pool.use(kBase, kPage);
  pool.use(kBase + 2 * kPage, kPage);
  on_a_thread([&] {
    pinrail_handle_t handle;
    (void)pool.reg(kBase, 4 * kPage, &handle);
  });
  ASSERT_TRUE(has_left);
  report(kBase, 4 * kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device.deregistered(PINRAIL_REASON_INVALIDATED), 2u) << "with what has displaced it";
  EXPECT_TRUE(pool.invariants_hold());
}

// In limbo and, because the thread that was to give it back has ended inside the registrar, on the gc list; and the
// next sum sees a find.
TEST(Limbo, is_entered_once) {
  const Library library;
  fake::FakeRegistrar device;
  const Pool pool(device);
  const pinrail_handle_t first = pool.must(kBase, kPage), second = pool.must(kBase + 8 * kPage, kPage);
  const Finds finds(pool, {first.reg, second.reg});
  for (const pinrail_handle_t handle : {first, second}) EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  const auto drain_elsewhere = [&] { on_a_thread([&] { pinrail_mpool_progress(pool.get()); }); };
  report(kBase, 64 * kPage);
  finds.count();
  drain_elsewhere();
  EXPECT_EQ(device.live_count(), 2u) << "they seem held";
  for (uintptr_t i = 0; i < 2; ++i) pool.use(kBase + (100 + 10 * i) * kPage, kPage);
  finds.roll_back();
  std::atomic<bool> has_left{false};
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (!has_left.exchange(true)) pthread_exit(nullptr);
  });
  drain_elsewhere();
  ASSERT_TRUE(has_left);
  finds.count();
  drain_elsewhere();
  finds.roll_back();
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_count, 2u);
}

// E4: the thread that was looking at all of limbo has ended inside the registrar.
TEST(Limbo, is_looked_at_again_from_its_begin_when_a_look_was_broken_off) {
  const Library library;
  fake::FakeRegistrar device;
  const Pool pool(device);
  constexpr uintptr_t kMany = 300;
  std::vector<pinrail_handle_t> handles;
  std::vector<pinrail_registration_t*> regs;
  for (uintptr_t i = 0; i < kMany; ++i) {
    handles.push_back(pool.must(kBase + 2 * i * kPage, kPage));
    regs.push_back(handles.back().reg);
  }
  const Finds finds(pool, regs);
  for (const pinrail_handle_t handle : handles) EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  report(kBase, 2 * kMany * kPage);
  finds.count();
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device.live_count(), kMany) << "they seem held";
  finds.roll_back();
  std::atomic<bool> has_left{false};
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (!has_left.exchange(true)) pthread_exit(nullptr);
  });
  on_a_thread([&] { pinrail_mpool_progress(pool.get()); });
  ASSERT_TRUE(has_left);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_TRUE(pool.invariants_hold());
}

// E4: the gc thread came and found nothing, because a call had all in its hands; that call put one into limbo.
TEST(Limbo, what_only_seemed_held_goes_back_without_a_call) {
  const Library library(with_gc_thread("64M"));
  fake::FakeRegistrar device;
  const Pool pool(device);
  const pinrail_handle_t seems_held = pool.must(kBase, kPage);
  const Finds find(pool, {seems_held.reg});
  EXPECT_EQ(pinrail_mpool_deregister(seems_held), PINRAIL_SUCCESS);
  for (uintptr_t i = 1; i <= 300; ++i) pool.use(kBase + 2 * i * kPage, kPage);
  std::atomic<bool> is_inside{false}, may_go{false};
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (is_inside.exchange(true)) return;
    while (!may_go) std::this_thread::yield();
  });
  report(kBase, kPage);  // summed last
  report(kBase, 1000 * kPage);
  std::thread caller([&] { pinrail_mpool_progress(pool.get()); });
  while (!is_inside) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(300));
  find.count();
  may_go = true;
  caller.join();
  find.roll_back();
  EXPECT_TRUE(comes_true([&] { return device.live_count() == 0; }));
}

// R3, R5: inside a registrar's function what is cached is a hit, though the evictor has claimed it, or too much is dead
// for the short way.
TEST(InsideTheRegistrar, what_is_claimed_is_hit) {
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
  const pinrail_handle_t held = pool.must(kBase, 64 * kPage);
  pool.use(kBase + 100 * kPage, 4 * kPage);
  bool is_first = true;
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (std::exchange(is_first, false)) pool.use(kBase + kPage, kPage);
  });
  report(kBase + 100 * kPage, kPage);
  pool.use(kBase + 200 * kPage, kPage);
  EXPECT_FALSE(is_first);
  EXPECT_EQ(device.register_calls(), 3u);
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
