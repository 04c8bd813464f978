// SPDX-License-Identifier: BSD-3-Clause
// Hook context, in signal handlers as well, except fork_reinit(). No function takes a lock.
#include "base/sync/deferred_hook.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>

#include "base/sync/gate.h"

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

// Hook context, also in a signal handler. What is stored holds the gate until it is delivered.
bool defer_hook(Deliver deliver_hook, void* arg, uintptr_t base, size_t length) {
  // All signals are blocked: a handler of another signal could interrupt this code and defer an event of its own.
  // Deferring is rare, so two system calls are acceptable.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool added = add_hook({deliver_hook, arg, base, base + length});
  if (added) {
    gate::hold_hook();
    ++state.held_gates;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return added;
}

// Delivers the deferred events if the thread holds no HookMutex, and then releases the gate as often as it was held.
void deliver_hook() {
  while (state.depth.depth == 0 && state.depth.waiting != 0) {
    Event events[kEvents];
    const uint32_t count = state.depth.waiting, gates = state.held_gates;
    std::copy(state.events, state.events + count, events);
    state.depth.waiting = 0;
    state.held_gates = 0;
    for (uint32_t i = 0; i < count; ++i) {
      events[i].deliver_hook(events[i].arg, events[i].base, events[i].end - events[i].base);
    }
    for (uint32_t i = 0; i < gates; ++i) gate::release_hook();
  }
}

// Runs inside the child's first call, which goes on: calls that a handler makes meanwhile are nested in it.
void fork_reinit() {
  const uint32_t calls = state.calls;
  state = {};
  state.calls = calls;
}

}  // namespace pinrail::deferred
