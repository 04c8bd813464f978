// SPDX-License-Identifier: BSD-3-Clause
// subscriptions_hook.h - the list that hooks walk, without a lock and without memory of their own.
//
// Hooks count themselves in and out of one of two gates; who takes a subscription out turns the gates and waits until
// the old one is empty: then no hook can still stand on what was taken out.
#ifndef PINRAIL_FRAMEWORK_MONITOR_SUBSCRIPTIONS_HOOK_H
#define PINRAIL_FRAMEWORK_MONITOR_SUBSCRIPTIONS_HOOK_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pinrail::monitor {

struct Subscription {
  uint32_t kinds;  // PINRAIL_KIND_* bits of the memory whose events are wanted; 0: all
  void (*hook)(void* arg, uintptr_t base, size_t length);
  void* arg;
  std::atomic<Subscription*> next;
};

// All seq_cst: a hook that counted itself in before the gates turned is waited for, one after sees the list without
// the entry that was taken out.
struct Subscriptions {
  std::atomic<Subscription*> first{nullptr};
  std::atomic<uint32_t> turn{0};  // hooks enter by gate[turn & 1]
  std::atomic<uint32_t> gate[2] = {{0}, {0}};

  uint32_t enter_hook();
  void leave_hook(uint32_t side) { gate[side].fetch_sub(1); }
  // kinds: of the memory that the event is about; 0: it may be of any kind.
  void deliver_hook(uint32_t kinds, uintptr_t base, size_t length);
};

// Both constant-initialised: there before main, and after everything. Those of other runtimes are called last, by a
// gate of their own: who takes one of ours out never waits for a stranger.
extern Subscriptions subscriptions;
extern Subscriptions foreign_subscriptions;

}  // namespace pinrail::monitor

#endif
