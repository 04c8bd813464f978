// SPDX-License-Identifier: BSD-3-Clause
// subscriptions_hook.h - the list of subscriptions, which hooks walk without a lock and without allocating.
//
// Hooks count themselves into one of two gates and out again. Removal unlinks the subscription, switches new hooks to
// the other gate, and waits until the old gate is empty: then no hook can still use the unlinked entry. All functions
// are hook context.
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

// All accesses are seq_cst: a hook that entered before the switch is waited for; a hook that enters after it sees the
// list without the removed entry.
struct Subscriptions {
  std::atomic<Subscription*> first{nullptr};
  std::atomic<uint32_t> turn{0};  // hooks enter by gate[turn & 1]
  std::atomic<uint32_t> gate[2] = {{0}, {0}};

  // Enters the current gate, again if a removal switched gates meanwhile; returns its side, for leave_hook().
  uint32_t enter_hook() {
    for (;;) {
      const uint32_t now = turn.load();
      gate[now & 1].fetch_add(1);
      if (turn.load() == now) return now & 1;
      gate[now & 1].fetch_sub(1);
    }
  }
  void leave_hook(uint32_t side) { gate[side].fetch_sub(1); }
  // Calls the subscribers that want the event. kinds: PINRAIL_KIND_* bits of its memory; 0: any kind.
  void deliver_hook(uint32_t kinds, uintptr_t base, size_t length);
};

// Both are constant-initialised and have no destructor, so they are valid before main() and at exit. Other runtimes'
// subscribers are called last and have gates of their own: removing one of ours never waits for theirs.
extern Subscriptions subscriptions;
extern Subscriptions foreign_subscriptions;

}  // namespace pinrail::monitor

#endif
