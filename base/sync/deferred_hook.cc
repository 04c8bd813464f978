// SPDX-License-Identifier: BSD-3-Clause
// Hook context, in signal handlers as well, except fork_reinit(). No function takes a lock.
#include "base/sync/deferred_hook.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/core/calling_thread.h"
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

// Between these two all signals but synchronous ones are blocked: a handler could interrupt code that changes the
// stored events, and defer or deliver events itself. Deferring is rare, so two system calls are acceptable.
sigset_t block_signals_hook() {
  const sigset_t signals = async_signals_hook();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  return before;
}
void restore_signals_hook(const sigset_t& before) { pthread_sigmask(SIG_SETMASK, &before, nullptr); }

// What was deferred and is not stored any more.
struct Taken {
  Event events[kEvents];
  uint32_t count, gates;
};

void take_hook(Taken* taken_out) {
  const sigset_t before = block_signals_hook();
  taken_out->count = std::exchange(state.depth.waiting, 0);
  taken_out->gates = std::exchange(state.held_gates, 0);
  std::copy(state.events, state.events + taken_out->count, taken_out->events);
  restore_signals_hook(before);
}

}  // namespace

HookDepth* depth_hook() { return &state.depth; }

// Hook context, also in a signal handler. What is stored holds the gate until it is delivered.
bool defer_hook(Deliver deliver_hook, void* arg, uintptr_t base, size_t length) {
  const sigset_t before = block_signals_hook();
  const bool added = add_hook({deliver_hook, arg, base, base + length});
  if (added) {
    gate::hold_hook();
    ++state.held_gates;
  }
  restore_signals_hook(before);
  return added;
}

// Delivers the deferred events if the thread holds no HookMutex, and then releases the gate as often as it was held.
void deliver_hook() {
  while (state.depth.depth == 0 && state.depth.waiting != 0) {
    Taken taken;
    take_hook(&taken);
    for (uint32_t i = 0; i < taken.count; ++i) {
      const Event& event = taken.events[i];
      event.deliver_hook(event.arg, event.base, event.end - event.base);
    }
    for (uint32_t i = 0; i < taken.gates; ++i) gate::release_hook();
  }
}

// Runs inside the child's first call, which goes on: calls that a handler makes meanwhile are nested in it.
void fork_reinit() {
  const uint32_t calls = state.calls;
  state = {};
  state.calls = calls;
}

}  // namespace pinrail::deferred
