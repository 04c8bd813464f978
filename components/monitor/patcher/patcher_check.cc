// SPDX-License-Identifier: BSD-3-Clause
// E6: whether others laid patches over ours, and what is done about it. API context; a thread of its own looks too.
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr unsigned kSettleMicroseconds = 1000;

void everything_dead(Context* context) { context->services->monitor_report_hook(context->services, 0, UINTPTR_MAX); }

// A patch of many bytes is not written in one step: it is tried only when two looks agree.
void let_settle(uintptr_t function) {
  for (patch::Snapshot last = patch::Snapshot::of(function);;) {
    usleep(kSettleMicroseconds);
    const patch::Snapshot now = patch::Snapshot::of(function);
    if (now.agrees(last, sizeof(now.bytes))) return;
    last = now;
  }
}

Status repair(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  everything_dead(context);
  while (site->repairs < kMostRepairs) {
    ++site->repairs;
    if (!install(context, site, function).ok()) break;
    if (!fire(context, function, site->address)) continue;
    everything_dead(context);  // once more: what was cached after the first time may have gone away unseen
    const pinrail_help_arg_t args[] = {{"function", function.name}};
    context->services->help(context->services, "patched over", args, 1);
    return success();
  }
  return PINRAIL_ERR_ERROR;
}

Status check_site(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  if (site->address == 0 || patch::stands(site->patch)) return success();
  let_settle(site->address);
  if (!fire(context, function, site->address)) return repair(context, site, function);
  patch::accept(&site->patch);  // whoever it was calls on: to fight for the place would never end
  return success();
}

void say_blind(Context* context, const Function& function) {
  const pinrail_help_arg_t args[] = {{"function", function.name}};
  context->services->help(context->services, "blind", args, 1);
  const std::string why = std::string("patcher: another library patched ") + function.name + " over and over";
  context->services->monitor_blind(context->services, why.c_str());
  everything_dead(context);
}

void* run(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  prctl(PR_SET_NAME, "pinrail-monitor");
  Guard guard(context->mutex);
  while (!context->stopping) {
    check_sites(context).ignore();  // it has said and done what follows
    context->wake.wait_for(context->mutex, std::chrono::milliseconds(context->interval_ms));
  }
  return nullptr;
}

}  // namespace

Status check_sites(Context* context) {
  for (size_t i = 0; i < kFunctions && !context->blind; ++i) {
    if (check_site(context, &context->sites[i], kFunctionTable[i]).ok()) continue;
    context->blind = true;
    say_blind(context, kFunctionTable[i]);
  }
  return context->blind ? Status(PINRAIL_ERR_ERROR) : success();
}

// The program's signals are not for this thread.
bool start_thread(Context* context) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  context->has_thread = pthread_create(&context->thread, nullptr, run, context) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return context->has_thread;
}

void stop_thread(Context* context) {
  if (!context->has_thread) return;
  context->has_thread = false;
  {
    Guard guard(context->mutex);
    context->stopping = true;
    context->wake.notify_all();
  }
  pthread_join(context->thread, nullptr);
}

}  // namespace pinrail::patcher

#endif
