// SPDX-License-Identifier: BSD-3-Clause
// unsubscribe_test.cc - a subscription is freed after the last hook that may use it, and a removal does not wait for
// those that begin later.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/sync/deferred_hook.h"
#include "framework/monitor/monitor.h"
#include "framework/monitor/subscriptions_hook.h"

namespace pinrail::monitor {
namespace {

constexpr uintptr_t kBase = 0x10000;

// Delivers another event from within its hook, and lasts until it may leave.
struct Nested {
  std::atomic<bool> is_inside{false}, entered{false}, may_leave{false}, left{false};
  static void hear(void* nested, uintptr_t base, size_t length) {
    auto* const self = static_cast<Nested*>(nested);
    if (self->is_inside.exchange(true)) return;
    report_hook(0, base, length);
    self->entered = true;
    while (!self->may_leave.load()) sched_yield();
    self->left = true;
  }
};

// A signal handler that frees memory interrupts the hook of another event: the end of the inner one is not that of the
// outer one.
TEST(Unsubscribe, waits_for_an_event_that_another_one_has_interrupted) {
  Nested nested;
  void* subscription = nullptr;
  ASSERT_TRUE(subscribe(0, Nested::hear, &nested, &subscription).ok());
  std::thread event([] { report_hook(0, kBase, 1); });
  while (!nested.entered.load()) sched_yield();
  std::thread leaver([&] {
    unsubscribe(subscription);
    EXPECT_TRUE(nested.left.load());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  nested.may_leave = true;
  event.join();
  leaver.join();
}

// Each hook lasts until the next one has begun, so that there is one at any time. A removal waits for those under way.
// Both threads count their hooks in one line, as threads do if there are more of them than lines.
struct Overlapping {
  std::atomic<uint64_t> begun{0};
  std::atomic<bool> is_over{false};
  static void hear(void* overlapping, uintptr_t, size_t) {
    auto* const self = static_cast<Overlapping*>(overlapping);
    const uint64_t own = self->begun.fetch_add(1) + 1;
    while (self->begun.load() == own && !self->is_over.load()) sched_yield();
  }
};

TEST(Unsubscribe, does_not_wait_for_hooks_that_begin_later) {
  Overlapping overlapping;
  void* stays = nullptr;
  ASSERT_TRUE(subscribe(0, Overlapping::hear, &overlapping, &stays).ok());
  const auto deliver = [&] {
    deferred::state.line = 1;
    while (!overlapping.is_over.load()) report_hook(0, kBase, 1);
  };
  std::thread events[2] = {std::thread(deliver), std::thread(deliver)};
  const Hook count = [](void* heard, uintptr_t, size_t) { static_cast<std::atomic<uint64_t>*>(heard)->fetch_add(1); };
  for (int i = 0; i < 100; ++i) {
    auto* const heard = new std::atomic<uint64_t>{0};
    void* leaves = nullptr;
    ASSERT_TRUE(subscribe(0, count, heard, &leaves).ok());
    while (heard->load() == 0) sched_yield();
    unsubscribe(leaves);
    delete heard;  // AddressSanitizer and ThreadSanitizer would see a hook that still uses it
  }
  overlapping.is_over = true;
  for (std::thread& event : events) event.join();
  unsubscribe(stays);
}

// One that has counted itself at the side that a removal has just left counts itself at the other one instead.
TEST(Unsubscribe, leaves_no_hook_counted_that_came_while_it_switched_sides) {
  static Subscriptions none;
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> came{0};
  const auto come_and_go = [&] {
    for (; !is_over.load(); ++came) Subscriptions::leave_hook(none.enter_hook());
  };
  std::thread hooks[2] = {std::thread(come_and_go), std::thread(come_and_go)};
  while (came.load() < 2000000) none.wait_for_hooks();
  is_over = true;
  for (std::thread& each : hooks) each.join();
  for (const Subscriptions::Line& line : none.lines) EXPECT_EQ(line.side[0].load() | line.side[1].load(), 0U);
}

}  // namespace
}  // namespace pinrail::monitor
