// SPDX-License-Identifier: BSD-3-Clause
// Hook context, in signal handlers as well, except fork_reinit(). No function takes a lock.
#include "base/sync/deferred_hook.h"

#include <algorithm>
#include <utility>

#include "base/core/calling_thread.h"
#include "base/sync/gate.h"
#include "base/sync/hook_scope.h"

namespace pinrail::deferred {

__thread State state __attribute__((tls_model("initial-exec"))) = {};

namespace {

// Merges the event with a deferred one of the same function and argument. False if there is none.
bool merge_hook(const Event& event) {
  for (Event* other = state.events; other != state.events + state.depth.waiting; ++other) {
    if (other->deliver_hook != event.deliver_hook || other->arg != event.arg) continue;
    other->base = std::min(other->base, event.base);
    other->end = std::max(other->end, event.end);
    return true;
  }
  return false;
}

// Adds the event, or merges it. The last entry is reserved for events whose arg is NULL, so that one of them always
// fits.
bool add_hook(const Event& event) {
  const uint32_t room = event.arg == nullptr ? kEvents : kEvents - 1;
  if (state.depth.waiting >= room) return merge_hook(event);
  state.events[state.depth.waiting++] = event;
  return true;
}

}  // namespace

HookDepth* depth_hook() { return &state.depth; }

// Hook context, also in a signal handler. What is stored holds the gate until it is delivered. While the stored events
// change, all signals but synchronous ones are blocked: a handler could defer or deliver events itself. Deferring is
// rare, so two system calls are acceptable.
bool defer_hook(Deliver deliver_hook, void* arg, uintptr_t base, size_t length) {
  const BlockAsyncSignals blocked;
  const bool added = add_hook({deliver_hook, arg, base, base + length});
  if (added) {
    gate::hold_hook();
    ++state.held_gates;
  }
  return added;
}

// Delivers the deferred events if the thread holds no HookMutex, and then releases the gate as often as it was held. In
// a child that the handler has forked they are the parent's, whose locks no thread there releases.
void deliver_hook() {
  while (state.depth.depth == 0 && state.depth.waiting != 0) {
    Event events[kEvents];
    uint32_t count = 0, gates = 0;
    {
      const BlockAsyncSignals blocked;
      count = std::exchange(state.depth.waiting, 0);
      gates = std::exchange(state.held_gates, 0);
      std::copy(state.events, state.events + count, events);
    }
    for (const Event* event = events; event != events + count; ++event) {
      if (!gate::is_child()) event->deliver_hook(event->arg, event->base, event->end - event->base);
    }
    for (; gates != 0; --gates) gate::release_hook();
  }
}

// Runs inside the child's first call, which goes on: calls that a handler makes meanwhile are nested in it.
void fork_reinit() {
  const uint32_t calls = state.calls;
  state = {};
  state.calls = calls;
}

}  // namespace pinrail::deferred

// The calling thread's depth in hooks (hook_scope.h).
#ifdef PINRAIL_DEBUG

// initial-exec: hooks run inside allocators, and the first access to any other kind of TLS may allocate.
static __thread unsigned depth __attribute__((tls_model("initial-exec"))) = 0;

unsigned* pinrail_debug_hook_depth(void) { return &depth; }

#endif
