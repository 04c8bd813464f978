// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/monitor.h"

#include <sched.h>

#include <new>

#include "base/core/lock.h"
#include "base/report/report.h"
#include "framework/monitor/subscriptions_hook.h"

namespace pinrail::monitor {
namespace {

constexpr char kHelp[] =
#include "framework/monitor/monitor_help.txt"
    ;

Mutex mutex{LockRank::subscribe};  // who changes the list
std::string started;               // start-up and shut-down only: names of the monitors that work
std::string reason;                // why there is none

const pinrail_monitor_ops_t* ops_of(const loader::Opened& opened) {
  return static_cast<const pinrail_monitor_ops_t*>(opened.descriptor->ops);
}

// After this no hook stands on what was unlinked before.
void wait_for_hooks() REQUIRES(mutex) {
  const uint32_t old_side = subscriptions.turn.fetch_add(1) & 1;
  while (subscriptions.gate[old_side].load() != 0) sched_yield();
}

void append(std::string* list, const char* name, const char* more) {
  *list += (list->empty() ? "" : ", ") + std::string(name) + more;
}

}  // namespace

Status subscribe(Hook hook, void* arg, void** subscription_out) {
  auto* subscription = new (std::nothrow) Subscription{hook, arg, {nullptr}};
  if (subscription == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Guard guard(mutex);
  subscription->next.store(subscriptions.first.load());
  subscriptions.first.store(subscription);
  *subscription_out = subscription;
  return success();
}

void unsubscribe(void* subscription_pointer) {
  auto* subscription = static_cast<Subscription*>(subscription_pointer);
  {
    Guard guard(mutex);
    std::atomic<Subscription*>* at = &subscriptions.first;
    while (at->load() != nullptr && at->load() != subscription) at = &at->load()->next;
    if (at->load() == nullptr) return;
    at->store(subscription->next.load());
    wait_for_hooks();
  }
  delete subscription;
}

Status start(const loader::Loader& loader) {
  started.clear();
  reason.clear();
  for (const loader::Opened& opened : loader.opened("monitor")) {
    const Status status = ops_of(opened)->start(opened.context);
    if (status.ok()) {
      append(&started, opened.descriptor->name, "");
      continue;
    }
    append(&reason, opened.descriptor->name, ": ");
    reason += status_name(status.code());
    if (!opened.named) continue;
    const pinrail_help_arg_t args[] = {{"name", opened.descriptor->name}, {"status", status_name(status.code())}};
    report::help("monitor", kHelp, "monitor failed", args, 2);
    return status;
  }
  if (reason.empty()) reason = "none is selected";
  return success();
}

void stop(const loader::Loader& loader) {
  for (const loader::Opened& opened : loader.opened("monitor")) ops_of(opened)->stop(opened.context);
  started.clear();
}

bool works(const char** why_out) {
  if (why_out != nullptr) *why_out = reason.c_str();
  return !started.empty();
}

}  // namespace pinrail::monitor
