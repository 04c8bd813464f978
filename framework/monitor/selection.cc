// SPDX-License-Identifier: BSD-3-Clause
// Chooses the monitors to start, and acts when one of them goes blind or an allocator comes that they do not see.
//
// Context  start-up, except blind(), check() and check_on_miss(): API context. No function may run in a hook.
// Locks    the caller holds no lock.
// References  no function here reads a registration; the caller may hold references.
#include <cstdio>
#include <new>
#include <utility>

#include "base/core/calling_thread.h"
#include "base/core/kernel.h"
#include "base/report/report.h"
#include "framework/monitor/findings.h"
#include "framework/monitor/loaded_objects.h"
#include "framework/monitor/mapping.h"
#include "framework/monitor/monitor.h"
#include "framework/monitor/own_calls.h"
#include "framework/monitor/subscriptions_hook.h"

namespace pinrail::monitor {
namespace {

constexpr char kHelp[] =
#include "framework/monitor/monitor_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "never", "",
     "Events that no program here causes, with commas between them: memory is kept registered although no monitor sees "
     "these. One that happens nevertheless is corrupted data.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "strict", "no",
     "Whether memory that another process can take pages from (files, shared memory) is never kept registered.",
     PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "trust_allocators", "no",
     "Whether all allocators of the process give memory back by functions of the C library; then none is looked for "
     "that does not, as those of sanitizers. Where it is not so: stale registrations.",
     PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 8, nullptr, 0, 0, nullptr}};

constexpr const char* kAddsNothing = "the monitors at work see all that it would see, and it costs time";

bool trusts_allocators = false;              // written at start-up
const loader::Loader* components = nullptr;  // valid from start() to stop()
std::atomic<uint64_t> known_loads{0};
LateTrial late_trial;
std::atomic<uint64_t> checks{0};
Allocators allocators;  // used at start-up, and then only inside a LoaderCall, as late_trial is until shut-down

const pinrail_monitor_ops_t* ops_of(const loader::Opened& opened) {
  return static_cast<const pinrail_monitor_ops_t*>(opened.descriptor->ops);
}
bool is_for_host(const loader::Opened& opened) {
  return ops_of(opened)->kinds == 0 || (ops_of(opened)->kinds & PINRAIL_KIND_HOST) != 0;
}

// Reads the monitors' parameters. BAD_PARAM, and reported: monitor_never names an unknown event.
Status read_policy(const param::Registry& params) {
  uint32_t never = 0;
  std::string unknown;
  const char* const list = params.value("monitor_never").s;
  if (!parse_events(list, &never, &unknown).ok()) {
    const std::string origin = params.origin("monitor_never"), known = name_events(PINRAIL_EVENTS_ALL);
    report::help("monitor", kHelp, "unknown event",
                 {{"value", list}, {"source", origin.c_str()}, {"unknown", unknown.c_str()}, {"known", known.c_str()}});
    return PINRAIL_ERR_BAD_PARAM;
  }
  set_policy({events_of_kernel() & ~never, params.value("monitor_strict").i != 0},
             params.watch("monitor_base_verbose"));
  trusts_allocators = params.value("monitor_trust_allocators").i != 0;
  return success();
}

// Stops a monitor.
void stop_one(const char* name, const pinrail_monitor_ops_t& ops, void* context) {
  loader::end_by_component("monitor", name, "stop", [&] { ops.stop(context); });
}

// Starts a monitor and adds it to the table. OUT_OF_RESOURCE: the table is full.
Status start_one(const loader::Opened& opened) {
  Status status = loader::answer_of_component([&] { return ops_of(opened)->start(opened.context); });
  if (!status.ok()) return status;
  StartedMonitor* const entry = started.add(*opened.descriptor, opened.context, opened.host);
  if (entry == nullptr) {
    stop_one(opened.descriptor->name, *ops_of(opened), opened.context);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  entry->is_named = opened.named;
  entry->events.store(read_events_seen(*entry));
  return status;
}

// Whether the monitor was started and still sees events.
bool is_started(const loader::Opened& opened) {
  const StartedMonitor* const monitor = started.find_hook(opened.host);
  return monitor != nullptr && monitor->sees.load();
}

// Whether another monitor could add a kind of memory.
bool lacks_something() { return !any_sees() || !kept_without(nullptr).keeps_everything(); }

// Appends a reason to the list.
void add_trouble(const std::string& text, std::string* troubles) {
  *troubles += (troubles->empty() ? "" : ", ") + text;
}

// Starts monitors in the order of priority. Returns the error of a named one; those of others are added to troubles.
Status start_all(const loader::Loader& loader, std::string* troubles, Idle* idle) {
  for (const loader::Opened& opened : loader.opened("monitor")) {
    // A monitor that adds only its cost is started only if it was named.
    const std::string name = opened.descriptor->name;
    if (is_for_host(opened) && !opened.named && !lacks_something()) {
      idle->emplace_back(name, kAddsNothing);
      continue;
    }
    const loader::LastLogLine words;
    const Status status = start_one(opened);
    if (status.ok()) continue;
    idle->emplace_back(name, "it does not start: " + words.with(status));
    add_trouble(name + ": " + words.with(status), troubles);
    if (!opened.named) continue;
    report::help("monitor", kHelp, "monitor failed", {{"name", name.c_str()}, {"status", status_name(status.code())}});
    return status;
  }
  return success();
}

// The process has an allocator with raw system calls: starts those monitors that see any caller.
void start_for_raw_calls(const loader::Loader& loader) {
  for (const loader::Opened& opened : loader.opened("monitor")) {
    if (!is_for_host(opened) || !sees_any_caller(*ops_of(opened)) || is_started(opened)) continue;
    const Status status = start_one(opened);
    if (!status.ok()) say(std::string(opened.descriptor->name) + " cannot join: " + status_name(status.code()));
  }
}

// Stops each monitor that was not named and adds no kind of memory: it would only cost time.
void stop_superfluous(Idle* idle) {
  for (StartedMonitor* at = started.end(); at != started.begin();) {
    StartedMonitor& monitor = *--at;
    if (!monitor.is_for_host() || monitor.is_named || !monitor.sees.load()) continue;
    if (!kept_without(nullptr).keeps_the_same(kept_without(&monitor))) continue;
    say(std::string(monitor.name) + " is stopped: it adds nothing here");
    idle->emplace_back(monitor.name, kAddsNothing);
    monitor.sees.store(false);
    monitor.is_stopped.store(true);
    stop_one(monitor.name, *monitor.ops, monitor.context);
  }
}

// Whether mappings can be read. Monitors to which every event is reported by address do not need this; all others do.
bool can_read_mappings(std::string* troubles) {
  if (coverage.looks_at_nothing()) return true;
  pinrail_mapping_t mapping{};
  if (find_mapping(reinterpret_cast<uintptr_t>(&components), &mapping)) return true;
  add_trouble("/proc/self/maps, which tells what kind of memory a range is, cannot be read", troubles);
  return false;
}

// Whether a working monitor sees only calls that go through the C library.
bool relies_on_c_library() {
  return any_seeing([](const StartedMonitor& monitor) { return !sees_any_caller(*monitor.ops); });
}

// E5: tries the functions that the process really calls.
void find_raw_calls(const loader::Loader& loader, std::string* troubles) {
  known_loads.store(count_loads());
  if (trusts_allocators || !relies_on_c_library()) return;
  allocators.find_new();
  const std::string found = find_raw_callers();
  if (found.empty()) return;
  add_trouble(found, troubles);
  note_raw_callers();
  start_for_raw_calls(loader);
}

// A loaded object contains an allocator that cannot be tried: the object may be unloaded at any time, and another
// thread may hold the loader's lock. Its calls are assumed to go unseen; everything cached dies. The caller holds no
// lock.
void assume_raw_calls(const ObjectPath& object) {
  (void)guarded([] { start_for_raw_calls(*components); });
  const char* why = "";
  {
    char troubles[ObjectPath::kRoom + 64];
    std::snprintf(troubles, sizeof(troubles), "the allocator of %s may give memory back past the C library",
                  object.text);
    Guard guard(findings_mutex);
    refresh_findings_locked(troubles);
    works(&why);
  }
  (void)guarded([&] {  // without memory the message is dropped
    report::help("monitor", kHelp, "allocator came",
                 {{"path", object.text}, {"why", *why != 0 ? why : "nothing: another monitor sees that"}});
  });
  report_hook(PINRAIL_KIND_HOST, 0, UINTPTR_MAX);
}

// If objects were loaded since the last look, returns the path of one that contains an allocator; empty: none does.
ObjectPath find_new_allocator() {
  const LoaderCall call;
  const uint64_t loads = call ? count_loads() : known_loads.load();
  if (loads == known_loads.load()) return {};
  known_loads.store(loads);
  return allocators.find_new();
}

// After 4, 16, 64 and so on checks, each of which is a miss; later ones every 4,096.
bool is_time_for_late_trial() {
  constexpr uint64_t kRarest = 4096;
  const uint64_t count = checks.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: one thread gets each number
  const bool is_power_of_4 = (count & (count - 1)) == 0 && (count & 0x5555555555555555) != 0;
  return count > 1 && (is_power_of_4 ? count <= kRarest : count % kRarest == 0);
}

// The process's malloc may return what was freed only after some use.
void try_malloc_again() {
  if (has_raw_callers() || !relies_on_c_library() || !is_time_for_late_trial()) return;
  const LoaderCall call;
  constexpr ObjectPath kProgram{"the program"};
  if (call && late_trial.finds_raw_calls() && note_raw_callers()) assume_raw_calls(kProgram);
}

void check_loaded_objects() {
  if (trusts_allocators) return;
  try_malloc_again();
  const ObjectPath came = find_new_allocator();
  // Another thread may have found another allocator.
  if (came.text[0] != 0 && relies_on_c_library() && note_raw_callers()) assume_raw_calls(came);
}

// Notes which events a monitor sees now; none: it is blind. False: it was blind before, too, or is not started.
bool note_change(const pinrail_host_t* host, const char* why, uint32_t* kinds_out) {
  Guard guard(findings_mutex);
  StartedMonitor* const changed = started.find_hook(host);
  if (changed == nullptr) return false;
  const uint32_t events = read_events_seen(*changed);
  if (events == 0 && !changed->sees.load()) return false;
  *kinds_out = changed->kinds;
  changed->events.store(events);
  changed->sees.store(events != 0);
  if (changed->is_for_host()) refresh_findings_locked(why != nullptr ? why : "");
  return true;
}

#ifdef __x86_64__
constexpr uint64_t kTicksBetweenChecks = 100000;  // of the processor: some 40 us
uint64_t ticks() { return __builtin_ia32_rdtsc(); }
#else
constexpr uint64_t kTicksBetweenChecks = 1000000;  // nanoseconds
uint64_t ticks() { return now_ns_hook(CLOCK_MONOTONIC_COARSE); }
#endif

std::atomic<uint64_t> last_check{0};

}  // namespace

Status declare(param::Registry* params) {
  return params->declare("monitor", "", kParams, sizeof(kParams) / sizeof(kParams[0]));
}

// Forgets the parent's monitors and subscriptions in a forked child; takes no lock, because a thread of the parent may
// have held it.
void fork_reinit() {
  new (&subscriptions) Subscriptions;
  new (&foreign_subscriptions) Subscriptions;
  started.clear();
  fork_reinit_findings();
  new (&allocators) Allocators;
  new (&late_trial) LateTrial;
  fork_reinit_loader_calls();
  components = nullptr;
}

// Start-up: starts the monitors, finds out which kinds are kept, and publishes that. The caller holds no lock.
Status start(const loader::Loader& loader, const param::Registry& params) {
  started.clear();
  forget_findings();
  Status status = read_policy(params);
  if (!status.ok()) return status;
  std::string troubles;
  Idle idle;
  status = start_all(loader, &troubles, &idle);
  if (!status.ok()) return status;
  find_raw_calls(loader, &troubles);
  if (!any_sees() && troubles.empty()) troubles = "no monitor is selected";
  const Kept kept = kept_without(nullptr);
  start_coverage();
  const bool saw = any_sees() && can_read_mappings(&troubles);
  stop_superfluous(&idle);
  components = &loader;
  start_coverage();
  Guard guard(findings_mutex);
  publish_findings_locked(kept, saw, troubles, std::move(idle));
  return success();
}

bool is_complete(const void* ops) {
  const auto& table = *static_cast<const pinrail_monitor_ops_t*>(ops);
  return table.start != nullptr && table.stop != nullptr;
}

// Allocates nothing: a monitor that is not stopped would go on while its component is closed.
void stop(const loader::Loader& loader) {
  for (const loader::Opened& opened : loader.opened("monitor")) {
    const bool runs = started.find_hook(opened.host) != nullptr;
    if (runs) stop_one(opened.descriptor->name, *ops_of(opened), opened.context);
  }
  late_trial.end();
  checks.store(0);
  started.clear();
  keep_nothing();
  coverage.forget_hook({0, UINTPTR_MAX});  // no registration is left that an event of a file must find
  close_proc_files();
  components = nullptr;
}

// E5. Registrations of other kinds of memory stay (monitor/M3).
void blind(const pinrail_host_t* host, const char* why) {
  uint32_t kinds = 0;
  if (note_change(host, why, &kinds)) report_hook(kinds, 0, UINTPTR_MAX);
}

// check() takes some 200 ns, a part of a miss; reading the clock takes a tenth of that.
void check_on_miss() {
  const uint64_t now = ticks();
  // relaxed: at worst two threads check at the same time.
  if (now - last_check.load(std::memory_order_relaxed) < kTicksBetweenChecks) return;
  last_check.store(now, std::memory_order_relaxed);
  check().ignore();  // the monitors have reported it and called blind()
}

Status check() {
  const NoCancel no_cancel;
  check_loaded_objects();
  Status result = success();
  for (const StartedMonitor& monitor : started) {
    if (monitor.ops->check == nullptr || monitor.is_stopped.load()) continue;
    const Status status = loader::answer_of_component([&] { return monitor.ops->check(monitor.context); });
    if (result.ok()) result = status;
  }
  return result;
}

}  // namespace pinrail::monitor
