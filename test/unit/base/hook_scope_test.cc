// SPDX-License-Identifier: BSD-3-Clause
// The hook wall: what no hook may do ends a debug build, and only in hooks.
#include "base/sync/hook_scope.h"

#include <gtest/gtest.h>
#include <pinrail/component.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"
#include "base/report/report.h"
#include "base/sync/call_scope.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/lock.h"
#include "framework/monitor/monitor.h"
#include "framework/registrar/registrar.h"

namespace pinrail {
namespace {

// deferred_hook/H2: none is lost, also where there are more than their room.
TEST(Deferred, more_events_than_there_is_room_for_are_united) {
  struct Heard {
    uintptr_t base = UINTPTR_MAX, end = 0;
    static void hook(void* heard, uintptr_t base, size_t length) {
      auto* const self = static_cast<Heard*>(heard);
      self->base = std::min(self->base, base);
      self->end = std::max(self->end, base + length);
    }
  };
  Heard heard, other;
  HookMutex mutex(LockRank::index, deferred::kLocks);
  EXPECT_FALSE(deferred::must_defer_hook()) << "no lock is held";
  {
    const Guard guard(mutex);
    for (uintptr_t page = 1; page <= 2 * deferred::kEvents; ++page) {
      EXPECT_TRUE(deferred::must_defer_hook());
      EXPECT_TRUE(deferred::defer_hook(Heard::hook, &heard, page * 4096, 4096)) << page;
    }
    EXPECT_EQ(heard.end, 0u) << "not while the lock is held";
    EXPECT_FALSE(deferred::defer_hook(Heard::hook, &other, 4096, 4096));
  }
  EXPECT_EQ(heard.base, 4096u);
  EXPECT_EQ(heard.end, (2 * deferred::kEvents + 1) * 4096);
  EXPECT_EQ(other.end, 0u);
}

// A callback may make one call, and the call that it interrupts is under way again afterwards.
TEST(CallScope, an_embedders_function_may_make_one_call_inside_the_call_that_runs_it) {
  const deferred::Call outer;
  EXPECT_TRUE(static_cast<bool>(outer));
  EXPECT_FALSE(static_cast<bool>(deferred::Call()));
  {
    const deferred::CallerScope inside;
    {
      const deferred::Call inner;
      EXPECT_TRUE(static_cast<bool>(inner));
      EXPECT_FALSE(static_cast<bool>(deferred::Call()));
    }
    EXPECT_TRUE(static_cast<bool>(deferred::Call())) << "the inner call has ended";
  }
  EXPECT_FALSE(static_cast<bool>(deferred::Call())) << "the outer call has not";
}

TEST(CallScope, no_call_is_made_while_the_thread_holds_a_lock_that_hooks_take) {
  HookMutex mutex(LockRank::index, deferred::kLocks);
  {
    const Guard guard(mutex);
    EXPECT_FALSE(static_cast<bool>(deferred::Call()));
  }
  EXPECT_TRUE(static_cast<bool>(deferred::Call()));
}

#ifdef PINRAIL_DEBUG

// Something that no compiler leaves out.
void* volatile kept = nullptr;

template <typename Body>
void in_a_hook(Body body) {
  const HookScope scope;
  body();
}

pinrail_status_t do_nothing(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

void call_registrar() {
  static pinrail_bound_registrar bound;
  static pinrail_registration_t* reg = nullptr;
  bound.table.deregister_mem = do_nothing;
  bound.table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  if (reg == nullptr) {
    ASSERT_TRUE(arena::allocate(0, 0, &reg).ok());
  }
  registrar::deregister_mem(&bound, thread::current(), reg, PINRAIL_REASON_RELEASED);
}

void take(LockRank rank) {
  Mutex mutex(rank);
  const Guard guard(mutex);
}

TEST(HookWallDeathTest, what_allocates_frees_or_logs) {
  kept = std::malloc(1);
  const struct {
    void (*what)();
    const char* said;
  } rows[] = {
      {[] { kept = std::malloc(1); }, "hook wall: memory is allocated in a hook"},
      {[] { kept = std::calloc(1, 1); }, "hook wall: memory is allocated in a hook"},
#ifndef __SANITIZE_THREAD__  // which does not report aligned ones
      {[] { kept = std::aligned_alloc(64, 64); }, "hook wall: memory is allocated in a hook"},
#endif
      {[] { kept = new std::string(100, 'x'); }, "hook wall: memory is allocated in a hook"},
      {[] { std::free(kept); }, "hook wall: memory is freed in a hook"},
      {[] { report::log("test", 0, PINRAIL_LOG_WARN, ""); }, "hook wall: a line is logged in a hook"},
      {[] { report::log("test", 0, PINRAIL_LOG_DEBUG, ""); }, "hook wall"},  // also a silent one
      {[] { report::help("test", "", "", nullptr, 0); }, "hook wall: a help text is printed"},
  };
  for (const auto& row : rows) EXPECT_DEATH(in_a_hook(row.what), row.said) << &row - rows;
  std::free(kept);
}

TEST(HookWallDeathTest, a_call_of_a_registrar) {
  call_registrar();
  EXPECT_DEATH(in_a_hook(call_registrar), "hook wall: a registrar is called in a hook");
}

TEST(HookWallDeathTest, a_lock_that_hooks_may_not_take) {
  for (const LockRank rank : {LockRank::monitor, LockRank::cache, LockRank::leaf}) {
    take(rank);
    EXPECT_DEATH(in_a_hook([rank] { take(rank); }), "hook wall: a lock is taken") << static_cast<int>(rank);
  }
  in_a_hook([] { take(LockRank::pending); });
  in_a_hook([] { take(LockRank::index); });
}

// What is reported reaches subscribers behind the wall.
TEST(HookWallDeathTest, a_subscriber_that_allocates) {
  void* subscription = nullptr;
  const auto hook = [](void*, uintptr_t, size_t) { kept = std::malloc(1); };
  ASSERT_TRUE(monitor::subscribe(0, hook, nullptr, &subscription).ok());
  EXPECT_DEATH(monitor::report_hook(0, 4096, 4096), "hook wall: memory is allocated in a hook");
  monitor::unsubscribe(subscription);
}

TEST(HookWall, ends_with_its_scope_and_nests) {
  EXPECT_FALSE(is_in_hook_scope());
  {
    const HookScope outer;
    { const HookScope inner; }
    EXPECT_TRUE(is_in_hook_scope());
    {
      const ForeignScope theirs;
      EXPECT_FALSE(is_in_hook_scope());
    }
    EXPECT_TRUE(is_in_hook_scope());
  }
  EXPECT_FALSE(is_in_hook_scope());
  kept = std::malloc(1);
  std::free(kept);
}

TEST(HookWall, is_each_threads_own) {
  const auto other = std::make_unique<std::thread>([] {
    for (int i = 0; i < 1000; ++i) {
      kept = std::malloc(1);
      std::free(kept);
    }
  });
  for (int i = 0; i < 1000; ++i) in_a_hook([] {});
  other->join();
}

TEST(LockRankDeathTest, a_step_down_and_two_of_one_rank) {
  Mutex low(LockRank::cache), high(LockRank::index), other_high(LockRank::index);
  const Guard guard(high);
  EXPECT_DEATH(low.lock(), "lock rank 20 taken while");
  EXPECT_DEATH(other_high.lock(), "taken while one of the same or a higher rank is held");
}

TEST(LockRank, a_try_that_fails_holds_nothing) {
  Mutex low(LockRank::cache), high(LockRank::index);
  high.lock();
  std::thread([&] {
    EXPECT_FALSE(high.try_lock());
    const Guard guard(low);  // would end the program if the other one counted as held
  }).join();
  high.unlock();
}

TEST(LockRankDeathTest, an_unlock_without_a_lock) {
  Mutex mutex(LockRank::cache);
  EXPECT_DEATH(mutex.unlock(), "unlocked by a thread that does not hold it");
  mutex.lock();
  EXPECT_DEATH(std::thread([&] { mutex.unlock(); }).join(), "unlocked by a thread that does not hold it");
  mutex.unlock();
}

#else

TEST(HookWall, stands_in_debug_builds) { GTEST_SKIP() << "this build is one without --enable-debug"; }

#endif

}  // namespace
}  // namespace pinrail
