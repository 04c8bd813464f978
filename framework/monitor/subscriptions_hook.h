// SPDX-License-Identifier: BSD-3-Clause
// subscriptions_hook.h - the list of subscriptions, which hooks walk without a lock and without allocating.
//
// There are counts of running hooks for two sides. A hook adds one to a count of the current side while it runs.
// Removal unlinks the subscription, switches the sides, and waits until all counts of the old side are 0: then no hook
// can still use the unlinked entry. Threads use counts in different cache lines, so that two threads that unmap do not
// wait for each other's lines. All functions are hook context.
#ifndef PINRAIL_FRAMEWORK_MONITOR_SUBSCRIPTIONS_HOOK_H
#define PINRAIL_FRAMEWORK_MONITOR_SUBSCRIPTIONS_HOOK_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/core/compiler.h"
#include "base/core/span.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/lock.h"

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
  using Count = std::atomic<uint32_t>;
  struct alignas(64) Line {
    Count side[2];  // the hooks that are at this side, of those threads that count here
  };
  static constexpr unsigned kLineBits = 4;

  Mutex mutex{LockRank::leaf};  // guards changes to the list
  std::atomic<Subscription*> first{nullptr};
  std::atomic<uint32_t> turn{0};          // hooks enter at side turn & 1
  Line lines[1 + (1 << kLineBits)] = {};  // no thread counts in the first one

  // Enters at the current side, again if a removal switched sides meanwhile; returns the count, for leave_hook().
  Count* enter_hook() {
    Line& own = line_of_thread_hook();
    for (;;) {
      const uint32_t now = turn.load();
      own.side[now & 1].fetch_add(1);
      if (turn.load() == now) return &own.side[now & 1];
      own.side[now & 1].fetch_sub(1);
    }
  }
  static void leave_hook(Count* count) { count->fetch_sub(1); }
  // Sends new hooks to the other side and waits for those that are here. One thread at a time.
  void wait_for_hooks();
  bool is_empty_hook() const { return first.load() == nullptr; }
  // Calls the subscribers that want the event. kinds: PINRAIL_KIND_* bits of its memory; 0: any kind. whole: its pages.
  void deliver_hook(uint32_t kinds, const Span& span, const Span& whole);

 private:
  Line& line_of_thread_hook() {
    uint32_t& own = deferred::state.line;
    if (unlikely(own == 0)) own = choose_line_hook();
    return lines[own];
  }
  // By the address of the thread's own state: threads lie one stack apart.
  static uint32_t choose_line_hook() {
    const auto own = uint64_t{reinterpret_cast<uintptr_t>(&deferred::state)};
    return 1 + static_cast<uint32_t>(own * 0x9E3779B97F4A7C15u >> (64 - kLineBits));
  }
};

// Both are constant-initialised and have no destructor, so they are valid before main() and at exit. Other runtimes'
// subscribers are called last and have gates of their own: removing one of ours never waits for theirs.
extern Subscriptions subscriptions, foreign_subscriptions;

}  // namespace pinrail::monitor

#endif
