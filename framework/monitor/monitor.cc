// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/monitor.h"

#include <sched.h>

#include <ctime>

#include <new>
#include <vector>

#include "base/core/lock.h"
#include "base/core/set_aside.h"
#include "base/report/report.h"
#include "framework/monitor/subscriptions_hook.h"

namespace pinrail::monitor {
namespace {

constexpr char kHelp[] =
#include "framework/monitor/monitor_help.txt"
    ;

Mutex mutex{LockRank::subscribe};  // who changes the list
std::string reason;                // start-up and shut-down only: why there is no monitor that works
std::string blind_reason;          // written once per life, before the count falls: why there is none any more

struct Started {
  const pinrail_monitor_ops_t* ops;
  void* context;
};
std::vector<Started> started;   // start-up and shut-down only
std::atomic<size_t> seeing{0};  // how many of them still do
std::atomic<bool> was_blind{false};

const pinrail_monitor_ops_t* ops_of(const loader::Opened& opened) {
  return static_cast<const pinrail_monitor_ops_t*>(opened.descriptor->ops);
}

// After this no hook stands on what was unlinked before.
void wait_for_hooks() REQUIRES(mutex) {
  const uint32_t old_side = subscriptions.turn.fetch_add(1) & 1;
  while (subscriptions.gate[old_side].load() != 0) sched_yield();
}

void add_reason(const char* name, Status status) {
  reason += (reason.empty() ? "" : ", ") + std::string(name) + ": " + status_name(status.code());
}

void forget() {
  started.clear();
  seeing.store(0);
  was_blind.store(false);
  reason.clear();
  blind_reason.clear();
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

void leave_parents_life() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::subscribe);
  new (&subscriptions) Subscriptions;
  make_anew(&started);
  make_anew(&reason);
  make_anew(&blind_reason);
  seeing.store(0);
  was_blind.store(false);
}

Status start(const loader::Loader& loader) {
  forget();
  for (const loader::Opened& opened : loader.opened("monitor")) {
    const Status status = ops_of(opened)->start(opened.context);
    if (status.ok()) {
      started.push_back({ops_of(opened), opened.context});
      seeing.fetch_add(1);
      continue;
    }
    add_reason(opened.descriptor->name, status);
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
  seeing.store(0);
}

bool works(const char** why_out) {
  const bool sees = seeing.load() != 0;
  if (why_out != nullptr) *why_out = !sees && was_blind.load() ? blind_reason.c_str() : reason.c_str();
  return sees;
}

void blind(const char* why) {
  Guard guard(mutex);
  if (seeing.load() == 0) return;
  if (!was_blind.load()) blind_reason = why;
  was_blind.store(true);
  seeing.fetch_sub(1);
}

namespace {

#ifdef __x86_64__
constexpr uint64_t kTicksBetweenLooks = 100000;  // of the processor: some 40 us
uint64_t ticks() { return __builtin_ia32_rdtsc(); }
#else
constexpr uint64_t kTicksBetweenLooks = 1000000;  // nanoseconds
uint64_t ticks() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}
#endif

std::atomic<uint64_t> last_look{0};

}  // namespace

// A look takes some 60 ns, a tenth of a miss; the clock takes a tenth of that.
void check_on_miss() {
  const uint64_t now = ticks();
  // relaxed: two threads at once may look both.
  if (now - last_look.load(std::memory_order_relaxed) < kTicksBetweenLooks) return;
  last_look.store(now, std::memory_order_relaxed);
  check().ignore();  // what is wrong they have said, and done what follows
}

Status check() {
  Status result = success();
  for (const Started& monitor : started) {
    const Status status = monitor.ops->check != nullptr ? Status(monitor.ops->check(monitor.context)) : success();
    if (result.ok()) result = status;
  }
  return result;
}

}  // namespace pinrail::monitor
