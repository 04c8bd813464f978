// SPDX-License-Identifier: BSD-3-Clause
// Keeps E6: notices that others have changed functions, and what is not seen any more. API context; a thread of its own
// checks as well. Functions with REQUIRES are called with Context::mutex held.
#include <linux/futex.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <memory>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr unsigned kSettleMicroseconds = 1000;

// Another library's patch of many bytes is not written in one step. So it is tried only when two snapshots agree.
patch::Snapshot wait_until_stable(const patch::Patch& patch) {
  for (patch::Snapshot last = patch::Snapshot::of(patch);;) {
    usleep(kSettleMicroseconds);
    const patch::Snapshot now = patch::Snapshot::of(patch);
    if (now == last) return now;
    last = now;
  }
}

// The topic of the message about a function whose events do not arrive any more. A debugger's breakpoint lets them
// arrive; for a probe the kernel runs the file's code in place of ours.
const char* topic_of(patch::Bytes bytes) { return bytes == patch::Bytes::breakpoint ? "breakpoint" : "patched over"; }

// A function has other bytes than before. Another party may have put bytes of the file back, as the kernel does when a
// probe ends; then the jump is written again, because the function may fail. Another library's patch is left in place,
// as is a breakpoint. Returns the topic of the message that is due; NULL: none.
const char* handle_change_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  const pinrail_host_t* const host = context->services;
  const patch::Snapshot now = wait_until_stable(site->patch);
  const patch::Bytes bytes = patch::whose(site->patch, now);
  const bool is_mended = bytes == patch::Bytes::torn && patch::mend(&site->patch, now).ok();
  const bool was_unseen = site->is_unseen;
  Scratch scratch(context);
  site->is_unseen = !fire(function, site->address, &scratch);
  // Since the change, events may have gone unseen: everything is dead.
  if (is_mended || site->is_unseen) host->monitor_report_hook(host, 0, UINTPTR_MAX);
  patch::accept(&site->patch);
  if (site->is_unseen) return was_unseen ? nullptr : topic_of(bytes);
  return is_mended ? "mended" : nullptr;
}

// Tells the library when events of a function do not arrive, or arrive again.
void tell_what_is_seen_locked(Context* context) REQUIRES(context->mutex) {
  uint32_t seen = context->found;
  const char* unseen = "";
  for (size_t i = 0; i < kFunctions; ++i) {
    if (!context->sites[i].is_unseen) continue;
    seen &= ~kFunctionTable[i].events;
    unseen = kFunctionTable[i].name;
  }
  if (seen == context->sees.load()) return;
  context->sees.store(seen);
  char why[128] = "";
  if (*unseen != 0) std::snprintf(why, sizeof(why), "patcher: another party has changed %s", unseen);
  context->services->monitor_blind(context->services, why);
}

// The topics of the messages that are due, one for each function; NULL: none.
using Topics = std::array<const char*, kFunctions>;

Topics check_sites(Context* context) {
  Guard guard(context->mutex);
  Topics topics{};
  const pinrail_host_t* const host = context->services;
  std::unique_ptr<const pinrail_host_t, decltype(host->monitor_release_hook)> held(nullptr, host->monitor_release_hook);
  for (size_t i = 0; i < kFunctions; ++i) {
    Site* const site = &context->sites[i];
    const bool is_changed = site->address != 0 && !patch::is_in_place(site->patch);
    if (!is_changed) continue;
    // Nothing is registered, and nothing cached is returned, until the library was told whether events still arrive.
    if (held == nullptr) {
      host->monitor_hold_hook(host);
      held.reset(host);
    }
    topics[i] = handle_change_locked(context, site, kFunctionTable[i]);
  }
  tell_what_is_seen_locked(context);
  return topics;
}

// The program's message function may wait for a lock whose holder registers, forks or checks: so the caller holds
// neither the gate nor the mutex.
void print_topics(const Context& context, const Topics& topics) {
  for (size_t i = 0; i < kFunctions; ++i) {
    if (topics[i] != nullptr) print_topic(context, topics[i], kFunctionTable[i]);
  }
}

// Sleeps until the alarm changes or the interval has passed.
void wait_for_alarm(Context* context, uint32_t alarm) {
  const timespec time = {static_cast<time_t>(context->interval_ms / 1000),
                         static_cast<long>(context->interval_ms % 1000 * 1000000)};
  patch::system_call_hook(SYS_futex, &context->alarm, FUTEX_WAIT_PRIVATE, alarm, &time);
}

// The checking thread: checks at each alarm, and after each interval.
void run(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  while (!context->stopping.load()) {
    const uint32_t alarm = context->alarm.load();  // before the check, so that a later alarm leads to another check
    Topics topics;
    {
      const monitor_services::Work work(*context->own.load());  // a child gets no function that is patched by half
      topics = check_sites(context);
    }
    print_topics(*context, topics);
    if (!context->stopping.load()) wait_for_alarm(context, alarm);
  }
}

}  // namespace

void check_and_print(Context* context) { print_topics(*context, check_sites(context)); }

bool start_thread(Context* context) { return context->thread.start("pinrail-monitor", run, context); }

void stop_thread(Context* context) {
  if (!context->thread.is_started()) return;
  context->stopping.store(true);
  raise_alarm_hook(context);
  context->thread.join();
}

}  // namespace pinrail::patcher

#endif
