// SPDX-License-Identifier: BSD-3-Clause
// Delivery of events to subscribers. Hook context: no lock is taken here, and subscribers' hooks take only leaf locks.
// The interrupted thread may hold references; no function here reads a registration.
#include "framework/monitor/subscriptions_hook.h"

#include <unistd.h>

#include <algorithm>

#include "base/sync/gate.h"
#include "base/sync/hook_scope.h"
#include "framework/monitor/coverage.h"
#include "framework/monitor/monitor.h"

namespace pinrail::monitor {

Subscriptions subscriptions, foreign_subscriptions;

static bool includes_host_hook(uint32_t kinds) { return kinds == 0 || (kinds & PINRAIL_KIND_HOST) != 0; }

Span whole_pages_hook(const Span& span) {
  const auto page = static_cast<size_t>(getpagesize());
  Span whole = span;
  return round_out(&whole, page) ? whole : Span{span.base & ~(page - 1), UINTPTR_MAX};
}

// Calls all subscribers that want the event, between enter_hook() and leave_hook(). Those that want no events of host
// memory get the range as it was reported: allocations of a GPU may share a page.
void Subscriptions::deliver_hook(uint32_t kinds, const Span& span, const Span& whole) {
  Count* const count = enter_hook();
  for (Subscription* at = first.load(); at != nullptr; at = at->next.load()) {
    const bool is_wanted = kinds == 0 || at->kinds == 0 || (kinds & at->kinds) != 0;
    const Span& wanted = includes_host_hook(at->kinds) ? whole : span;
    if (is_wanted) at->hook(at->arg, wanted.base, wanted.length());
  }
  leave_hook(count);
}

namespace {

// Delivers an event to our subscribers, then to those of other runtimes.
void deliver_report_hook(uint32_t kinds, uintptr_t base, size_t length) {
  const Span span = Span::of(base, length), whole = whole_pages_hook(span);
  {
    const HookScope scope;
    // First: a register that retries because of this event judges the mapping anew.
    if (includes_host_hook(kinds)) coverage.forget_hook(whole);
    if (!subscriptions.is_empty_hook()) subscriptions.deliver_hook(kinds, span, whole);
  }
  if (likely(foreign_subscriptions.is_empty_hook())) return;
  const ForeignScope theirs;  // E3: the one exception to the hook wall
  foreign_subscriptions.deliver_hook(kinds, span, whole);
}

// `kinds` is the event's kinds as a pointer, so that only events of the same kinds are merged: what happens to host
// memory ends no memory of a GPU.
void deliver_deferred_hook(void* kinds, uintptr_t base, size_t length) {
  deliver_report_hook(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(kinds)), base, length);
}

// There is always room for an event of any kind (0), whose argument is NULL.
__attribute__((noinline)) void defer_hook(uint32_t kinds, uintptr_t base, size_t length) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): never followed
  auto* const arg = reinterpret_cast<void*>(static_cast<uintptr_t>(kinds));
  if (deferred::defer_hook(deliver_deferred_hook, arg, base, length)) return;
  deferred::defer_hook(deliver_deferred_hook, nullptr, base, length);
}

}  // namespace

// Delivers an event now, or defers it if this thread holds or waits for a lock of hooks (in a signal handler). With a
// tag, it is reported without it as well: munmap() ends that memory, which may be registered by either address.
void report_hook(uint32_t kinds, uintptr_t base, size_t length) {
  length = std::min(length, UINTPTR_MAX - base);
  if (length == 0 || gate::is_child()) return;  // F1: before any lock of a subscriber
  if (without_tag(base) != base) report_hook(kinds, without_tag(base), length);
  if (deferred::must_defer_hook()) return defer_hook(kinds, base, length);
  deliver_report_hook(kinds, base, length);
}

}  // namespace pinrail::monitor
