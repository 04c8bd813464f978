// SPDX-License-Identifier: BSD-3-Clause
// deferred_hook.h - memory events in signal handlers.
//
// munmap may be called in a signal handler, and the handler may have interrupted a thread that holds a lock which the
// hook needs. So each thread counts the locks of hooks that it holds or waits for (HookMutex in lock.h). A hook that
// finds the count above 0 does not wait: it holds the gate, writes the event down, and returns. The thread delivers the
// event when it has released its last such lock, and then releases the gate.
//
// Threads  each knows of itself alone.
// Hook     all functions; they are async-signal-safe.
//
// deferred_hook/H1  A thread whose depth is 0 holds no lock that hooks take: depth rises before such a lock is asked
//     for, and falls after it was released.
// deferred_hook/H2  While an event is deferred the gate is held: a register or find that begins after the handler's
//     munmap has returned gets no answer before the event was delivered (E1).
// deferred_hook/H3  Events are deferred only while depth is above 0, and delivered only while it is 0: never both at
//     once.
#ifndef PINRAIL_BASE_SYNC_DEFERRED_HOOK_H
#define PINRAIL_BASE_SYNC_DEFERRED_HOOK_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/sync/hook_locks.h"

namespace pinrail::deferred {

using Deliver = void (*)(void* arg, uintptr_t base, size_t length);

struct Event {
  Deliver deliver_hook;
  void* arg;
  uintptr_t base;
  uintptr_t end;
};

// Small, for it lies in the static TLS block. Events that do not fit are united with one of the same arg.
constexpr uint32_t kEvents = 4;

struct State {
  HookDepth depth;      // depth.waiting: how many of the events are in use
  uint32_t held_gates;  // by deferred events
  uint32_t calls;       // calls of the C face that may take locks and that this thread is in
  Event events[kEvents];
};

// initial-exec: hooks run inside allocators, and the first touch of any other kind may allocate.
extern __thread State state __attribute__((tls_model("initial-exec")));

enum class Deferral : uint8_t {
  none,    // the calling thread holds no lock of hooks: the caller delivers the event itself
  done,    // deferred
  no_room  // never of an event with arg NULL, if all of those have one deliver_hook
};
Deferral defer_hook(Deliver deliver_hook, void* arg, uintptr_t base, size_t length);

// For host tables and for locks of the library; see HookLocks.
HookDepth* depth_hook();
void deliver_hook();
constexpr HookLocks kLocks{depth_hook, deliver_hook};

// In a forked child: the locks are new, and events of the parent are nobody's.
void fork_reinit();

}  // namespace pinrail::deferred

#endif
