// SPDX-License-Identifier: BSD-3-Clause
// Memory events for other runtimes in this process. API context, except pass_on_hook(). The caller holds no lock; it
// may hold references, which play no role here.
#include <memory>

#include "base/sync/cause_scope.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/refuse.h"
#include "framework/monitor/monitor.h"

// The subscriber's function with its types of the C face; `entry` is its place in the monitor's list.
struct pinrail_subscription {
  pinrail_monitor_event_t event;
  void* arg;
  void* entry;
};

namespace pinrail::front {
namespace {

// Calls the subscriber. Hook context, without a lock held.
void pass_on_hook(void* subscription, uintptr_t base, size_t length) {
  const auto* to = static_cast<pinrail_subscription_t*>(subscription);
  to->event(to->arg, reinterpret_cast<void*>(base), length);  // NOLINT(performance-no-int-to-ptr): an address
}

// Adds a subscriber, which the monitor calls after all of ours.
Status subscribe(pinrail_monitor_event_t event, void* arg, pinrail_subscription_t** subscription_out) {
  handle_fork();
  constexpr const char* kCall = "pinrail_monitor_subscribe";
  if (event == nullptr || subscription_out == nullptr) return refuse(kCall, "event or subscription_out is NULL");
  if (library() == nullptr) return refuse(kCall, kBeforeInit);
  if (!monitor::works(nullptr)) return PINRAIL_ERR_NOT_AVAILABLE;
  auto subscription = std::make_unique<pinrail_subscription_t>(pinrail_subscription_t{event, arg, nullptr});
  const Status status = monitor::subscribe_foreign(pass_on_hook, subscription.get(), &subscription->entry);
  if (status.ok()) *subscription_out = subscription.release();
  return status;
}

}  // namespace
}  // namespace pinrail::front

using pinrail::guarded;

int pinrail_monitor_works(void) {
  pinrail::front::handle_fork();
  return pinrail::front::library() != nullptr && pinrail::monitor::works(nullptr) ? 1 : 0;
}

pinrail_status_t pinrail_monitor_subscribe(pinrail_monitor_event_t event, void* arg,
                                           pinrail_subscription_t** subscription_out) {
  return guarded([&] { return pinrail::front::subscribe(event, arg, subscription_out); });
}

void pinrail_monitor_unsubscribe(pinrail_subscription_t* subscription) {
  if (subscription == nullptr) return;
  pinrail::front::handle_fork();
  pinrail::monitor::unsubscribe_foreign(subscription->entry);
  delete subscription;
}

// Hook or API context.
void pinrail_monitor_report(void* addr, size_t length) {
  const pinrail::deferred::CauseScope cause("program");
  pinrail::monitor::report_hook(0, reinterpret_cast<uintptr_t>(addr), length);
}
