// SPDX-License-Identifier: BSD-3-Clause
// deferred_hook.h - defers memory events that a signal handler causes while its thread holds a lock that hooks take.
//
// munmap may be called in a signal handler, and the handler may have interrupted a thread that holds a lock that the
// hook needs. So each thread counts the HookMutexes (lock.h) that it holds or waits for. A hook that finds the count
// above 0 does not wait: it holds the gate, stores the event, and returns. When the thread has released its last
// HookMutex, it delivers the event and then releases the gate.
//
// Threads  All state is the calling thread's own.
// Hook     all functions; they are async-signal-safe.
//
// deferred_hook/H1  A thread whose depth is 0 holds no lock that hooks take: the depth rises before such a lock is
//     requested and falls after it was released.
// deferred_hook/H2  The gate is held as long as an event is deferred. So a register or find that begins after the
//     handler's munmap has returned gets no answer before the event was delivered (E1).
//
// An event is deferred only while the depth is above 0 and delivered only while it is 0. A signal handler that
// interrupts a delivery may cause one of its own: each event is taken for delivery once.
#ifndef PINRAIL_BASE_SYNC_DEFERRED_HOOK_H
#define PINRAIL_BASE_SYNC_DEFERRED_HOOK_H

#include <cstddef>

#include "base/sync/lock.h"

namespace pinrail::deferred {

// Handles one memory event. It runs in hook context.
using Deliver = void (*)(void* arg, uintptr_t base, size_t length);

struct Event {
  Deliver deliver_hook;
  void* arg;
  uintptr_t base;
  uintptr_t end;
};

// The array is small, because it lies in the static TLS block. An event that does not fit is merged with one of the
// same function and argument.
constexpr uint32_t kEvents = 4;

struct State {
  HookDepth depth;      // depth.waiting: the number of events in use
  uint32_t held_gates;  // how often this thread holds the gate for deferred events
  uint32_t calls;       // 1 while the thread is in a Call (call_scope.h)
  uint32_t line;        // where its hooks count themselves (subscriptions_hook.h); 0: it had none yet
  Event events[kEvents];
  const char* cause;  // what reports the memory event under way; NULL: none is, or it was deferred
};

// initial-exec: hooks run inside allocators, and the first access to any other kind of TLS may allocate.
extern __thread State state __attribute__((tls_model("initial-exec")));

// Whether this thread holds or waits for a HookMutex. Then an event is deferred, otherwise its caller delivers it.
inline bool must_defer_hook() { return state.depth.depth != 0; }
// Whether this thread may hold a lock of any kind. For signal handlers and what they call.
inline bool may_hold_lock() { return state.calls != 0 || must_defer_hook(); }
// Stores the event of [base, base + length), or merges it with a stored one. Call it only if must_defer_hook(). False:
// there is no room, and the caller must report a larger event. There always is for events whose arg is NULL, if all of
// them have the same function.
bool defer_hook(Deliver deliver_hook, void* arg, uintptr_t base, size_t length);

// Host tables and the library's locks call these (HookLocks). deliver_hook() returns at once while the depth is not 0.
HookDepth* depth_hook();
void deliver_hook();
constexpr HookLocks kLocks{depth_hook, deliver_hook};

// In a forked child, in its first call: forgets the parent's deferred events and this thread's depth, because all locks
// are new.
void fork_reinit();

}  // namespace pinrail::deferred

#endif
