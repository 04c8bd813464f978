// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close, start and stop. start() patches the functions and tries them; stop() leaves the
// patches in place. Start-up context, except check(). Functions with REQUIRES are called with Context::mutex held.
#include <sched.h>

#include <new>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

namespace pinrail::patcher {
namespace {

const char kHelp[] =
#include "components/monitor/patcher/patcher_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "check_interval", "100",
     "Milliseconds between two looks whether another library patched over ours; until then its victims go unseen. 0: "
     "no thread looks. A look costs some 200 ns.",
     PINRAIL_TYPE_UNSIGNED, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 3600000, nullptr},
    {sizeof(pinrail_param_t), "leave_out", "",
     "For debugging: functions not to patch, with commas between them, or \"loader\". What they unmap is not seen: "
     "stale registrations.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 9, nullptr, 0, 0, nullptr}};

// The only mutable global: patches belong to the process, and so do the contexts to which they lead. Contexts are added
// and never removed.
std::atomic<Context*> all_contexts{nullptr};

// Returns a closed context for reuse, or NULL. In a forked child the parent's contexts are not used: the checking
// thread may have held their lock at the fork. So may any thread the lock of patches, which is made anew once.
Context* take_closed() {
  Context* taken = nullptr;
  bool is_new_child = false;
  for (Context* at = all_contexts.load(); at != nullptr; at = at->next) {
    const bool is_of_parent = at->alive != nullptr && at->alive->load() == 0;
    bool closed = false;
    if (is_of_parent) {
      is_new_child = !at->left_behind.exchange(true) || is_new_child;
    } else if (taken == nullptr && at->in_use.compare_exchange_strong(closed, true)) {
      taken = at;
    }
  }
  if (is_new_child) patch::fork_reinit();
  return taken;
}

Context* make_context() {
  auto* context = new (std::nothrow) Context;
  if (context == nullptr) return nullptr;
  context->next = all_contexts.load();
  while (!all_contexts.compare_exchange_weak(context->next, context)) {
  }
  return context;
}

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  Context* context = take_closed();
  if (context == nullptr) context = make_context();
  if (context == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  context->services = host;
  *context_out = context;
  return PINRAIL_SUCCESS;
}

void close(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  context->services = nullptr;
  context->in_use.store(false);
}

#if PINRAIL_CAN_PATCH

#ifdef __GLIBC__
constexpr uint32_t kUnseen = PINRAIL_EVENT_DIRECT_WRITE | PINRAIL_EVENT_DRIVER_MOVE;
#else  // musl's fopen() and freopen() cut files by a system call of their own
constexpr uint32_t kUnseen = PINRAIL_EVENT_DIRECT_WRITE | PINRAIL_EVENT_DRIVER_MOVE | PINRAIL_EVENT_TRUNCATE;
#endif
constexpr uint32_t kSeen = PINRAIL_EVENTS_ALL & ~kUnseen;

// Returns whether the comma-separated list contains the function's name.
bool lists(const std::string& list, const Function& function) {
  const std::string name = function.home == Home::loader       ? "loader"
                           : function.home == Home::libpthread ? "open"
                                                               : function.name;
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

// Reads the component's parameters.
Status read_params(Context* context, std::string* leave_out_out) {
  pinrail_param_value_t interval{}, leave_out{};
  const Status status =
      pinrail::read_params(context->services, {{"check_interval", &interval}, {"leave_out", &leave_out}});
  if (!status.ok()) return status;
  context->interval_ms = interval.u;
  *leave_out_out = leave_out.s;
  return status;
}

// Prepares what hooks need before they are installed. NOT_SUPPORTED: this libc or kernel lacks something, or the
// library is of another version.
Status prepare_context(Context* context) {
  context->own.store(monitor_services::of(context->services));
  if (context->own.load() == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  if (!is_libc_of_program()) {
    context->services->log(context->services, PINRAIL_LOG_INFO, "this libc is not the program's: dlmopen() loaded it");
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (context->alive == nullptr) context->alive = make_alive_word();
  const bool ready = context->alive != nullptr && patch::pin_object_of(reinterpret_cast<const void*>(&enter_hook));
  if (!ready) context->services->log(context->services, PINRAIL_LOG_INFO, "this libc or kernel lacks what hooks need");
  return ready ? success() : Status(PINRAIL_ERR_NOT_SUPPORTED);
}

Status report_missing(const Context& context, const Function& function) {
  if (function.may_lack) return success();
  print_topic(context, "function not found", function);
  return PINRAIL_ERR_NOT_SUPPORTED;
}

bool leaves_out(const Context& context, const Function& function, const std::string& list) {
  if (!lists(list, function)) return false;
  const std::string line = std::string(function.name) + " is left out: what it unmaps is not seen";
  context.services->log(context.services, PINRAIL_LOG_WARN, line.c_str());
  return true;
}

// If a function cannot be patched, only its events are not seen (E5). Patches of an earlier start() are kept.
Status patch_all_locked(Context* context, const std::string& leave_out) REQUIRES(context->mutex) {
  for (size_t i = 0; i < kFunctions; ++i) {
    Site& site = context->sites[i];
    if (site.address == 0 && !lists(leave_out, kFunctionTable[i])) site.address = find_function(kFunctionTable[i]);
  }
  patch_locked(context);
  Scratch scratch(context);
  uint32_t seen = kSeen;  // the events of left-out functions count as seen: leave_out exists to show what
                          // is then missed
  for (size_t i = 0; i < kFunctions; ++i) {
    const Function& function = kFunctionTable[i];
    Site* const site = &context->sites[i];
    context->code_at[i].store(0);
    if (leaves_out(*context, function, leave_out)) continue;
    const bool is_found = site->address != 0;
    const Status status = is_found ? try_locked(context, site, function, &scratch) : report_missing(*context, function);
    // The error would be the same for every function, so the others need not be tried.
    if (status.is(PINRAIL_ERR_PERM) || status.is(PINRAIL_ERR_NOT_AVAILABLE)) return status;
    if (!status.ok()) {
      seen &= ~kFunctionTable[i].events;
      site->address = 0;
    }
    context->code_at[i].store(site->address);
  }
  context->found = seen;
  context->sees.store(seen);
  return seen != 0 ? success() : Status(PINRAIL_ERR_NOT_SUPPORTED);
}

void stop(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  // In a forked child there is no thread, and hooks that were running at the fork never return.
  const bool same_process = context->alive != nullptr && context->alive->load() != 0;
  if (same_process) stop_thread(context);
  context->thread.forget();
  context->host.store(nullptr);
  while (same_process && context->in_flight.load() != 0) sched_yield();
  if (context->subscription != nullptr) {
    context->services->monitor_unsubscribe(context->services, context->subscription);
    context->subscription = nullptr;
  }
}

// host is set before the patches, because each patch is tried at once. No registration is cached before start()
// returns.
Status begin(Context* context) {
  std::string leave_out;
  Status status = read_params(context, &leave_out);
  if (status.ok()) status = prepare_context(context);
  // A statically linked program has none of the functions; one message says so.
  if (status.ok() && find_function(kFunctionTable[0]) == 0) status = report_missing(*context, kFunctionTable[0]);
  if (!status.ok()) return status;
  const pinrail_host_t* host = context->services;
  status =
      host->monitor_subscribe(host, PINRAIL_KIND_HOST, Probe::report_hook, &context->probe, &context->subscription);
  if (!status.ok()) return status;
  context->host.store(host, std::memory_order_release);  // release: pairs with is_active_hook()
  {
    Guard guard(context->mutex);
    context->stopping.store(false);
    status = patch_all_locked(context, leave_out);
  }
  if (status.ok() && context->interval_ms != 0 && !start_thread(context)) {
    show(context->services, "no thread");
    status = PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  return status;
}

pinrail_status_t start(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  const Status status = guarded([context] { return begin(context); });
  if (!status.ok()) stop(context);
  return status.code();
}

pinrail_status_t check(void* context_pointer) {
  check_and_print(static_cast<Context*>(context_pointer));
  return PINRAIL_SUCCESS;
}

#else

pinrail_status_t start(void*) { return PINRAIL_ERR_NOT_SUPPORTED; }
void stop(void*) {}
pinrail_status_t check(void*) { return PINRAIL_ERR_NOT_SUPPORTED; }

#endif

uint32_t sees(void* context_pointer) { return static_cast<Context*>(context_pointer)->sees.load(); }

constexpr pinrail_monitor_ops_t kOps = {sizeof(pinrail_monitor_ops_t), start, stop, check, sees, nullptr, 0,
                                        PINRAIL_MONITOR_AFTERWARDS};

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MONITOR_ABI, 50, "monitor", "patcher",
                         "Patches libc's munmap, mmap, madvise and their like: sees what the process unmaps by them.",
                         open, close, &kOps),
                kHelp, kParams);

}  // namespace
}  // namespace pinrail::patcher

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::patcher::kComponent;
