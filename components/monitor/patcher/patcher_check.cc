// SPDX-License-Identifier: BSD-3-Clause
// Keeps E6: notices that others have patched over our patches, and repairs that. API context; a thread of its own
// checks as well. The caller of check_sites_locked() and of the functions below it holds Context::mutex.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/patch/system_call.h"
#include "base/sync/own_threads.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr unsigned kSettleMicroseconds = 1000;

void everything_dead(Context* context) { context->services->monitor_report_hook(context->services, 0, UINTPTR_MAX); }

// Another library's patch of many bytes is not written in one step. So it is tried only when two snapshots agree.
void wait_until_stable(uintptr_t function) {
  for (patch::Snapshot last = patch::Snapshot::of(function);;) {
    usleep(kSettleMicroseconds);
    const patch::Snapshot now = patch::Snapshot::of(function);
    if (now.agrees(last, sizeof(now.bytes))) return;
    last = now;
  }
}

// Context::mutex is held. Everything cached dies; patches the function again until events arrive. ERROR: not after
// kMaxRepairs patches.
Status repair_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  everything_dead(context);
  while (site->repairs < kMaxRepairs) {
    ++site->repairs;
    // The built-in reader: a thread that holds the dynamic loader's lock may be waiting for this one (Hold).
    if (!install_locked(context, site, function, patch::Disassembler()).ok()) break;
    if (!fire(context, function, site->address)) continue;
    everything_dead(context);  // again: memory cached since the first call may have gone away unseen
    const pinrail_help_arg_t args[] = {{"function", function.name}};
    context->services->help(context->services, "patched over", args, 1);
    return success();
  }
  return PINRAIL_ERR_ERROR;
}

// Holds the gate, so that no cached registration is returned until it is known whether events still arrive.
class GateHold {
 public:
  explicit GateHold(const pinrail_host_t* host) : host_(host) { host_->monitor_hold_hook(host_); }
  ~GateHold() { host_->monitor_release_hook(host_); }
  GateHold(const GateHold&) = delete;
  GateHold& operator=(const GateHold&) = delete;

 private:
  const pinrail_host_t* const host_;
};

// Context::mutex is held. Another party has put bytes of the function back, as the kernel does when a probe ends: since
// then its events went unseen, and it may have failed.
Status mend_and_try_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  everything_dead(context);
  if (!mend_site(site) || !fire(context, function, site->address)) return repair_locked(context, site, function);
  everything_dead(context);  // again: memory cached since the first call may have gone away unseen
  site->is_trapped = false;
  site->trap = {};
  const pinrail_help_arg_t args[] = {{"function", function.name}};
  context->services->help(context->services, "mended", args, 1);
  return success();
}

// Context::mutex is held. A breakpoint is left alone. Of a debugger's, events arrive nevertheless; a probe of the
// kernel runs the file's code in place of ours.
void note_breakpoint_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  site->trap = patch::Snapshot::of(site->address);
  site->is_trapped = !fire(context, function, site->address);
  if (!site->is_trapped) return;
  everything_dead(context);
  const pinrail_help_arg_t args[] = {{"function", function.name}, {"consequence", function.consequence}};
  context->services->help(context->services, "breakpoint", args, 2);
}

// Context::mutex is held. Keeps another library's patch if events still arrive through it, else repairs.
Status handle_changed_site_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  const GateHold hold(context->services);
  wait_until_stable(site->address);
  const patch::Bytes bytes = patch::whose(site->patch, site->file, patch::Snapshot::of(site->address));
  if (bytes == patch::Bytes::torn) return mend_and_try_locked(context, site, function);
  if (bytes == patch::Bytes::breakpoint) {
    note_breakpoint_locked(context, site, function);
    return success();
  }
  if (!fire(context, function, site->address)) return repair_locked(context, site, function);
  patch::accept(&site->patch);  // the other patch calls ours; patching over it would start an endless contest
  return success();
}

// Context::mutex is held. ERROR: events of the function do not arrive any more.
Status check_site_locked(Context* context, size_t index) REQUIRES(context->mutex) {
  Site* const site = &context->sites[index];
  if (site->address == 0) return success();
  const patch::Snapshot now = patch::Snapshot::of(site->address);
  const bool is_known_trap = now.agrees(site->trap, sizeof(now.bytes));
  if (!is_known_trap && !now.agrees(site->patch.seen, site->patch.guarded_length())) {
    return handle_changed_site_locked(context, site, kFunctionTable[index]);
  }
  if (!is_known_trap && site->is_trapped) site->is_trapped = !fire(context, kFunctionTable[index], site->address);
  if (!is_known_trap) site->trap = {};
  copy_code_locked(context, index, now);
  return success();
}

// Context::mutex is held. Tells the library when a function was trapped, or is not any more.
void tell_what_is_seen_locked(Context* context) REQUIRES(context->mutex) {
  uint32_t seen = context->found;
  const char* trapped = "";
  for (size_t i = 0; i < kFunctions; ++i) {
    if (!context->sites[i].is_trapped) continue;
    seen &= ~kFunctionTable[i].events;
    trapped = kFunctionTable[i].name;
  }
  if (seen == context->sees.load()) return;
  context->sees.store(seen);
  char why[128] = "";
  if (*trapped != 0) std::snprintf(why, sizeof(why), "patcher: a breakpoint or a probe stands in %s", trapped);
  context->services->monitor_blind(context->services, why);
}

// Allocates nothing: without memory, what is cached must die all the same.
void report_blind(Context* context, const Function& function) {
  const pinrail_help_arg_t args[] = {{"function", function.name}};
  context->services->help(context->services, "blind", args, 1);
  context->sees.store(0);
  char why[128];
  std::snprintf(why, sizeof(why), "patcher: another library patched %s over and over", function.name);
  context->services->monitor_blind(context->services, why);
  everything_dead(context);
}

// Sleeps until the alarm changes or the interval has passed.
void wait_for_alarm(Context* context, uint32_t alarm) {
  const timespec time = {static_cast<time_t>(context->interval_ms / 1000),
                         static_cast<long>(context->interval_ms % 1000 * 1000000)};
  patch::system_call_hook(SYS_futex, reinterpret_cast<long>(&context->alarm), FUTEX_WAIT_PRIVATE, alarm,
                          reinterpret_cast<long>(&time));
}

// The checking thread: checks at each alarm, and after each interval.
void run(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  const own_threads::Calls calls = own_threads::Calls::of(context->services);
  while (!context->stopping.load()) {
    const uint32_t alarm = context->alarm.load();  // before the check, so that a later alarm leads to another check
    if (!is_code_unchanged(*context)) {
      const own_threads::ComponentWork work(calls);  // a child gets no function that is patched by half
      Guard guard(context->mutex);
      check_sites_locked(context).ignore();  // errors were reported and handled inside
    }
    if (!context->stopping.load()) wait_for_alarm(context, alarm);
  }
}

}  // namespace

// relaxed: single numbers; a reader that sees an inconsistent mixture checks again with the lock.
void copy_code_locked(Context* context, size_t function, const patch::Snapshot& seen) {
  CodeCopy& copy = context->code_copies[function];
  // At least 16 bytes: another library's patch may begin before ours.
  const size_t guarded = std::max(context->sites[function].patch.guarded_length(), size_t{16});
  const size_t count = (guarded + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  for (size_t i = 0; i < count; ++i) {
    uint64_t word;
    std::memcpy(&word, seen.bytes + i * sizeof(word), sizeof(word));
    copy.words[i].store(word, std::memory_order_relaxed);
  }
  copy.count.store(count, std::memory_order_relaxed);
  copy.at.store(context->sites[function].address, std::memory_order_relaxed);
}

bool is_code_unchanged(const Context& context) {
  uint64_t differs = 0;
  for (const CodeCopy& copy : context.code_copies) {
    const uintptr_t at = copy.at.load(std::memory_order_relaxed);  // relaxed: as in copy_code_locked()
    if (at == 0) continue;
    const auto* code = reinterpret_cast<const uint64_t*>(at);  // NOLINT(performance-no-int-to-ptr): an address of code
    const size_t count = copy.count.load(std::memory_order_relaxed);  // relaxed: as in copy_code_locked()
    for (size_t i = 0; i < count; ++i) {
      const uint64_t now = __atomic_load_n(&code[i], __ATOMIC_RELAXED);  // relaxed: another library may be writing it
      differs |= now ^ copy.words[i].load(std::memory_order_relaxed);
    }
  }
  return differs == 0;
}

// Context::mutex is held. ERROR: this monitor is blind; it has said so and dropped everything cached.
bool mend_site(Site* site) {
  const patch::Snapshot now = patch::Snapshot::of(site->address);
  const patch::Bytes bytes = patch::whose(site->patch, site->file, now);
  return bytes == patch::Bytes::expected ||
         (bytes == patch::Bytes::torn && patch::mend(&site->patch, site->file, now).ok());
}

Status check_sites_locked(Context* context) {
  for (size_t i = 0; i < kFunctions && !context->blind; ++i) {
    if (check_site_locked(context, i).ok()) continue;
    context->blind = true;
    report_blind(context, kFunctionTable[i]);
  }
  if (context->blind) return PINRAIL_ERR_ERROR;
  tell_what_is_seen_locked(context);
  return success();
}

bool start_thread(Context* context) { return context->thread.start("pinrail-monitor", run, context); }

void stop_thread(Context* context) {
  if (!context->thread.is_started()) return;
  context->stopping.store(true);
  raise_alarm_hook(context);
  context->thread.join();
}

}  // namespace pinrail::patcher

#endif
