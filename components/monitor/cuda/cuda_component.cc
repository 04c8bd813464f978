// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, open, close; start patches the driver and tries it, stop only stops telling.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "base/core/lock.h"
#include "components/monitor/cuda/cuda.h"

namespace pinrail::cuda_monitor {
namespace {

const char kHelp[] =
#include "components/monitor/cuda/cuda_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "library", "libcuda.so.1",
     "File name of the CUDA driver library whose frees are watched, as dlopen takes it.", PINRAIL_TYPE_STRING,
     PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr}};

constexpr Function kFunctions[] = {{"cuMemFree_v2", Frees::address, false},
                                   {"cuMemFreeAsync", Frees::address, true},
                                   {"cuMemFreeAsync_ptsz", Frees::address, true},
                                   {"cuMemUnmap", Frees::range, true}};
constexpr size_t kFunctionCount = sizeof(kFunctions) / sizeof(kFunctions[0]);

struct Context {
  const pinrail_host_t* host;
  void* library = nullptr;
  Listener* listener = nullptr;
};

// Patches belong to the process, as the driver does.
Mutex mutex{LockRank::monitor};
Site sites[kFunctionCount] GUARDED_BY(mutex);

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t file{};
  const Status found = host->param(host, "library", &file);
  if (!found.ok()) return found.code();
  void* library = dlopen(file.s, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return PINRAIL_ERR_NOT_AVAILABLE;
  auto* context = new (std::nothrow) Context{host, library, nullptr};
  if (context == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *context_out = context;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Context*>(context); }

// E7: the object that hooks run in stays mapped.
bool pin_own_object() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&free_hook), &own) == 0) return false;
  void* const handle = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle != nullptr) dlclose(handle);
  return true;
}

// The bytes, for whoever has to teach base/patch a new driver.
Status say_refused(const Context& context, const Function& function, uintptr_t address, Status status) {
  const patch::Snapshot seen = patch::Snapshot::of(address);
  char text[3 * sizeof(seen.bytes) + 1];
  for (size_t i = 0; i < sizeof(seen.bytes); ++i) std::snprintf(text + 3 * i, 4, "%02x ", seen.bytes[i]);
  const pinrail_help_arg_t args[] = {{"function", function.name}, {"bytes", text}};
  context.host->help(context.host, "unknown code", args, 2);
  return status;
}

Status patch_site(const Context& context, Site* site, const Function& function) REQUIRES(mutex) {
  if (site->stands && patch::stands(site->patch)) return success();
  void* const symbol = dlsym(context.library, function.name);
  if (symbol == nullptr) return function.may_lack ? success() : Status(PINRAIL_ERR_NOT_SUPPORTED);
  if (site->stands)
    return say_refused(context, function, reinterpret_cast<uintptr_t>(symbol), PINRAIL_ERR_NOT_SUPPORTED);
  const auto address = reinterpret_cast<uintptr_t>(symbol);
  patch::Patch made;
  Status status = patch::prepare(address, free_hook, site, &made);
  if (!status.ok()) return say_refused(context, function, address, status);
  site->function = &function;
  site->original.store(made.island.original, std::memory_order_release);  // release: pairs with free_hook()
  status = patch::activate(&made);
  if (!status.ok()) return say_refused(context, function, address, status);
  site->patch = made;
  site->stands = true;
  return status;
}

// E5: a free of nothing does nothing, and must be seen.
bool sees(const Context& context) {
  using Free = int (*)(unsigned long long);
  const auto free_nothing = reinterpret_cast<Free>(dlsym(context.library, kFunctions[0].name));
  const uint64_t before = shared.probes.load();
  free_nothing(0);
  return shared.probes.load() != before;
}

void wipe() {
  for (Listener& listener : shared.listeners) listener.store(nullptr);
  shared.in_flight.store(0);
}

// Kernels before 4.14, or pages of another size: the next best.
void prepare_for_forks() {
  if (madvise(&shared, sizeof(shared), MADV_WIPEONFORK) != 0) pthread_atfork(nullptr, nullptr, wipe);
}
pthread_once_t once = PTHREAD_ONCE_INIT;

Status take_listener(Context* context) {
  pthread_once(&once, prepare_for_forks);
  for (Listener& listener : shared.listeners) {
    const pinrail_host_t* nobody = nullptr;
    if (!listener.compare_exchange_strong(nobody, context->host)) continue;
    context->listener = &listener;
    return success();
  }
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

Status begin(Context* context) {
  if (!pin_own_object()) return PINRAIL_ERR_NOT_SUPPORTED;
  {
    Guard guard(mutex);
    for (size_t i = 0; i < kFunctionCount; ++i) {
      const Status status = patch_site(*context, &sites[i], kFunctions[i]);
      if (!status.ok()) return status;
    }
  }
  if (!sees(*context)) return PINRAIL_ERR_NOT_SUPPORTED;
  return take_listener(context);
}

pinrail_status_t start(void* context) { return begin(static_cast<Context*>(context)).code(); }

void stop(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  if (context->listener == nullptr) return;
  context->listener->store(nullptr);
  context->listener = nullptr;
  while (shared.in_flight.load() != 0) sched_yield();
}

constexpr pinrail_monitor_ops_t kOps = {
    sizeof(pinrail_monitor_ops_t), start, stop, nullptr, 0, nullptr, PINRAIL_KIND_GPU};

}  // namespace
}  // namespace pinrail::cuda_monitor

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {
    sizeof(pinrail_component_t),
    PINRAIL_MONITOR_ABI,
    -1,  // until it was seen on a real driver, only who names it has the driver's code patched
    "monitor",
    "cuda",
    "1.0.0",
    "Sees frees of GPU memory, by patching the CUDA driver library.",
    pinrail::cuda_monitor::kHelp,
    pinrail::cuda_monitor::kParams,
    sizeof(pinrail::cuda_monitor::kParams) / sizeof(pinrail::cuda_monitor::kParams[0]),
    nullptr,
    pinrail::cuda_monitor::open,
    pinrail::cuda_monitor::close,
    &pinrail::cuda_monitor::kOps};
