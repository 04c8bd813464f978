// SPDX-License-Identifier: BSD-3-Clause
// Subscriptions. selection.cc chooses the monitors. API context; the callers hold no lock, and may hold references.
#include "framework/monitor/monitor.h"

#include <sched.h>

#include <new>

#include "framework/monitor/subscriptions_hook.h"

namespace pinrail::monitor {

Status subscribe(uint32_t kinds, Hook hook, void* arg, void** subscription_out, Subscriptions* list) {
  auto* subscription = new (std::nothrow) Subscription{kinds, hook, arg, {nullptr}};
  if (subscription == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Guard guard(list->mutex);
  subscription->next.store(list->first.load());
  list->first.store(subscription);
  *subscription_out = subscription;
  return success();
}

// Unlinks a subscription, waits for hooks that may use it, and deletes it; ignores one that is not in the list.
void unsubscribe(void* subscription_pointer, Subscriptions* list) {
  auto* subscription = static_cast<Subscription*>(subscription_pointer);
  {
    Guard guard(list->mutex);
    std::atomic<Subscription*>* at = &list->first;
    while (at->load() != nullptr && at->load() != subscription) at = &at->load()->next;
    if (at->load() == nullptr) return;
    at->store(subscription->next.load());
    list->wait_for_hooks();
  }
  delete subscription;
}

void Subscriptions::wait_for_hooks() {
  const uint32_t old_side = turn.fetch_add(1) & 1;
  for (const Line& line : lines) {
    while (line.side[old_side].load() != 0) sched_yield();
  }
}

}  // namespace pinrail::monitor
