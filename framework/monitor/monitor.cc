// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/monitor.h"

#include <sched.h>

#include <ctime>
#include <deque>
#include <new>

#include "base/core/forever.h"
#include "base/core/lock.h"
#include "base/core/no_cancel.h"
#include "base/core/set_aside.h"
#include "base/report/report.h"
#include "framework/monitor/coverage.h"
#include "framework/monitor/mapping.h"
#include "framework/monitor/subscriptions_hook.h"

namespace pinrail::monitor {
namespace {

constexpr char kHelp[] =
#include "framework/monitor/monitor_help.txt"
    ;

Mutex mutex{LockRank::subscribe};          // who changes the list of ours
Mutex foreign_mutex{LockRank::strangers};  // who changes that of strangers
Forever<std::string> reason;               // start-up and shut-down only: why there is no monitor that works
Forever<std::string> blind_reason;         // written once per life, before the count falls: why there is none any more

struct Started {
  Started(const pinrail_monitor_ops_t* its_ops, void* its_context, const pinrail_host_t* its_host)
      : ops(its_ops), context(its_context), host(its_host) {}
  const pinrail_monitor_ops_t* ops;
  void* context;
  const pinrail_host_t* host;
  std::atomic<bool> sees{true};
  std::atomic<uint32_t> events{0};  // that it sees wherever they happen
};
Forever<std::deque<Started>> started;  // grows at start-up, is emptied at shut-down
std::atomic<size_t> seeing{0};         // how many of them still do
std::atomic<bool> was_blind{false};
const std::atomic<int64_t>* verbosity = nullptr;  // start-up and shut-down only

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "never", "",
     "Events that no program here causes, with commas between them: memory is kept registered although no monitor sees "
     "these. One that happens nevertheless is corrupted data.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "strict", "no",
     "Whether memory that another process can take pages from (files, shared memory) is never kept registered.",
     PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr}};

const pinrail_monitor_ops_t* ops_of(const loader::Opened& opened) {
  return static_cast<const pinrail_monitor_ops_t*>(opened.descriptor->ops);
}

// After this no hook stands on what was unlinked before. One at a time for each list.
void wait_for_hooks(Subscriptions* list) {
  const uint32_t old_side = list->turn.fetch_add(1) & 1;
  while (list->gate[old_side].load() != 0) sched_yield();
}

Status add(Mutex* mutex_of_list, Subscriptions* list, Hook hook, void* arg, void** subscription_out) {
  auto* subscription = new (std::nothrow) Subscription{hook, arg, {nullptr}};
  if (subscription == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Guard guard(*mutex_of_list);
  subscription->next.store(list->first.load());
  list->first.store(subscription);
  *subscription_out = subscription;
  return success();
}

void take_out(Mutex* mutex_of_list, Subscriptions* list, void* subscription_pointer) {
  auto* subscription = static_cast<Subscription*>(subscription_pointer);
  {
    Guard guard(*mutex_of_list);
    std::atomic<Subscription*>* at = &list->first;
    while (at->load() != nullptr && at->load() != subscription) at = &at->load()->next;
    if (at->load() == nullptr) return;
    at->store(subscription->next.load());
    wait_for_hooks(list);
  }
  delete subscription;
}

// What the monitor says that it sees now.
uint32_t ask_events(const Started& monitor) {
  return monitor.ops->sees == nullptr ? 0 : monitor.ops->sees(monitor.context);
}

void add_reason(const char* name, Status status) {
  *reason += (reason->empty() ? "" : ", ") + std::string(name) + ": " + status_name(status.code());
}

// Everything that is asked while monitors come or go.
uint32_t ask(const pinrail_mapping_t& mapping) {
  uint32_t seen = 0;
  for (const Started& monitor : *started) {
    if (!monitor.sees.load()) continue;
    seen |= monitor.events.load();
    if (monitor.ops->cover != nullptr) seen |= monitor.ops->cover(monitor.context, &mapping);
  }
  return seen;
}

// relaxed: a number on its own.
void say(const std::string& line) {
  const int most = verbosity == nullptr ? 0 : static_cast<int>(verbosity->load(std::memory_order_relaxed));
  report::log("monitor", most, PINRAIL_LOG_INFO, line);
}

// What the monitors that still see are good for.
void start_coverage(const Policy& policy) {
  uint32_t everywhere = 0;
  bool is_all = true;
  for (const Started& monitor : *started) {
    if (!monitor.sees.load()) continue;
    everywhere |= monitor.events.load();
    is_all = is_all && monitor.ops->cover == nullptr;
  }
  coverage.start(policy, everywhere, is_all);
}

Policy policy;  // written at start-up

Status read_policy(const param::Registry& params) {
  uint32_t never = 0;
  std::string unknown;
  const char* const list = params.value("monitor_never").s;
  if (!parse_events(list, &never, &unknown).ok()) {
    const std::string origin = params.origin("monitor_never"), known = name_events(PINRAIL_EVENTS_ALL);
    const pinrail_help_arg_t args[] = {
        {"value", list}, {"source", origin.c_str()}, {"unknown", unknown.c_str()}, {"known", known.c_str()}};
    report::help("monitor", kHelp, "unknown event", args, 4);
    return PINRAIL_ERR_BAD_PARAM;
  }
  policy = {events_of_kernel() & ~never, params.value("monitor_strict").i != 0};
  verbosity = params.watch("monitor_base_verbose");
  return success();
}

// It sees nothing any more.
void stop_believing(Started* monitor, const char* why) REQUIRES(mutex) {
  monitor->sees.store(false);
  if (seeing.load() == 1) {
    *blind_reason = why;
    was_blind.store(true);
  }
  seeing.fetch_sub(1);
}

void forget() {
  started->clear();
  seeing.store(0);
  was_blind.store(false);
  reason->clear();
  blind_reason->clear();
}

}  // namespace

Coverage coverage(find_mapping, ask, say);

Status declare(param::Registry* params) {
  return params->declare("monitor", "", kParams, sizeof(kParams) / sizeof(kParams[0]));
}

Status subscribe(Hook hook, void* arg, void** subscription_out) {
  return add(&mutex, &subscriptions, hook, arg, subscription_out);
}
void unsubscribe(void* subscription) { take_out(&mutex, &subscriptions, subscription); }

Status subscribe_foreign(Hook hook, void* arg, void** subscription_out) {
  return add(&foreign_mutex, &foreign_subscriptions, hook, arg, subscription_out);
}
void unsubscribe_foreign(void* subscription) { take_out(&foreign_mutex, &foreign_subscriptions, subscription); }

void leave_parents_life() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::subscribe);
  new (&foreign_mutex) Mutex(LockRank::strangers);
  new (&subscriptions) Subscriptions;
  new (&foreign_subscriptions) Subscriptions;
  make_anew(&started);
  make_anew(&reason);
  make_anew(&blind_reason);
  seeing.store(0);
  was_blind.store(false);
  new (&coverage) Coverage(find_mapping, ask, say);
  verbosity = nullptr;
}

Status start(const loader::Loader& loader, const param::Registry& params) {
  forget();
  const Status read = read_policy(params);
  if (!read.ok()) return read;
  uint32_t seen = 0;  // by those that were started
  for (const loader::Opened& opened : loader.opened("monitor")) {
    const uint32_t kinds = ops_of(opened)->kinds;
    const bool is_for_host = kinds == 0 || (kinds & PINRAIL_KIND_HOST) != 0;
    // What adds nothing but its price is there for who asks for it.
    if (is_for_host && !opened.named && !started->empty() && (policy.possible & ~seen) == 0) continue;
    const Status status = ops_of(opened)->start(opened.context);
    if (status.ok()) {
      if (!is_for_host) continue;  // it says nothing about host memory (E5)
      started->emplace_back(ops_of(opened), opened.context, opened.host);
      started->back().events.store(ask_events(started->back()));
      seen |= started->back().events.load();
      seeing.fetch_add(1);
      continue;
    }
    add_reason(opened.descriptor->name, status);
    if (!opened.named) continue;
    const pinrail_help_arg_t args[] = {{"name", opened.descriptor->name}, {"status", status_name(status.code())}};
    report::help("monitor", kHelp, "monitor failed", args, 2);
    return status;
  }
  if (reason->empty()) *reason = "none is selected";
  start_coverage(policy);
  return success();
}

void stop(const loader::Loader& loader) {
  for (const loader::Opened& opened : loader.opened("monitor")) ops_of(opened)->stop(opened.context);
  started->clear();
  seeing.store(0);
  verbosity = nullptr;
}

bool works(const char** why_out) {
  const bool sees = seeing.load() != 0;
  if (why_out != nullptr) *why_out = !sees && was_blind.load() ? blind_reason->c_str() : reason->c_str();
  return sees;
}

bool covers(uintptr_t base, size_t length) {
  return seeing.load() != 0 && fits(base, length) && coverage.covers(Span::of(base, length));
}

void blind(const pinrail_host_t* host, const char* why) {
  {
    Guard guard(mutex);
    Started* blinded = nullptr;
    for (Started& monitor : *started) blinded = monitor.host == host && monitor.sees.load() ? &monitor : blinded;
    if (blinded == nullptr) return;
    blinded->events.store(ask_events(*blinded));
    if (blinded->events.load() == 0) stop_believing(blinded, why);
    start_coverage(policy);
  }
  report_hook(0, UINTPTR_MAX);  // E5
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
  const NoCancel no_cancel;
  Status result = success();
  for (const Started& monitor : *started) {
    const Status status = monitor.ops->check != nullptr ? Status(monitor.ops->check(monitor.context)) : success();
    if (result.ok()) result = status;
  }
  return result;
}

}  // namespace pinrail::monitor
