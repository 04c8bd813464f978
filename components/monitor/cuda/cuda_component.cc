// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, open, close, start and stop. start() patches the driver and tests that; stop() ends the reports and
// leaves the patches. Start-up context. Functions with REQUIRES are called with the component's lock held.
#include <dlfcn.h>
#include <pinrail/component.h>
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <iterator>
#include <new>
#include <string>

#include "base/core/own_component.h"
#include "base/patch/patch.h"
#include "base/sync/lock.h"

// Monitor/cuda: sees frees of GPU memory by patching the CUDA driver library. A statically linked CUDA runtime
// finds the driver's functions by address, so interposed symbols would miss its frees.
//
// Owns     its patches, which stay until the process ends.
// Threads  start and stop: start-up and shut-down; they take the component's lock. Hooks run on any thread.
//
// Listeners get the event before the driver frees the memory. The monitor reports nothing about host memory and does
// not count as a monitor for it.
//
// cuda_component/K3  A forked child has no listeners: those of the parent are the parent's. In a process that was
//     restarted from a checkpoint the listeners still get events, even if its pid has changed.

namespace pinrail::cuda_monitor {

// What a function frees: the allocation at its first argument; the range of its first two arguments; or everything in a
// context, of which no list exists.
enum class Frees : uint8_t { address, range, everything };

struct Function {
  const char* symbol;
  const char* name;  // name for cuGetProcAddress, by which CUDA runtimes find it
  Frees frees;
  bool may_lack;
};

// One entry point of a function in the driver. A function may have several: the symbol, and the results of
// cuGetProcAddress.
struct Site {
  const Function* function = nullptr;
  uintptr_t address = 0;
  patch::Patch patch;  // without places: it is not patched
  // Of another copy of Pinrail whose component is not this one; NULL: none. It is written before the patch.
  std::atomic<const patch::Record*> original{nullptr};
};

// One for each copy of Pinrail that listens.
using Listener = std::atomic<const pinrail_host_t*>;
constexpr size_t kListeners = 8;
constexpr size_t kPage = 4096;

// It belongs to the process, as the patches do. It has pages of its own, which the kernel wipes in a forked child
// (cuda_component/K3).
struct alignas(kPage) Shared {
  Listener listeners[kListeners] = {};
  std::atomic<uint64_t> in_flight{0};
  std::atomic<uint64_t> probes{0};  // number of frees of address 0, by which start() tests whether frees are seen
};
extern Shared shared;

// Hook context.
bool free_hook(void* site, long number, const long* args, long* result_out);

namespace {

const char kHelp[] =
#include "components/monitor/cuda/cuda_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "library", "libcuda.so.1",
     "File name of the CUDA driver library whose frees are watched, as dlopen takes it.", PINRAIL_TYPE_STRING,
     PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr}};

// The end of a context frees everything in it. So does the last release of a primary context, but pools keep a
// reference to each context that they have used.
constexpr Function kFunctions[] = {{"cuMemFree_v2", "cuMemFree", Frees::address, false},
                                   {"cuMemFreeAsync", "cuMemFreeAsync", Frees::address, true},
                                   {"cuMemFreeAsync_ptsz", "cuMemFreeAsync", Frees::address, true},
                                   {"cuMemUnmap", "cuMemUnmap", Frees::range, true},
                                   {"cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset", Frees::everything, true},
                                   {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset", Frees::everything, true},
                                   {"cuCtxDestroy_v2", "cuCtxDestroy", Frees::everything, true},
                                   {"cuCtxDestroy", "cuCtxDestroy", Frees::everything, true}};
constexpr size_t kMaxAddresses = 3;  // of one function

struct Context {
  const pinrail_host_t* host;
  void* library = nullptr;
  Listener* listener = nullptr;
};

// Patches belong to the process, as the driver does.
Mutex mutex{LockRank::monitor};
Site sites[std::size(kFunctions) * kMaxAddresses] GUARDED_BY(mutex);

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t file{};
  const Status found = host->param(host, "library", &file);
  if (!found.ok()) return found.code();
  const char* why = "";
  void* const library = load_library(file.s, &why);
  if (library == nullptr) return not_available(host, "no CUDA driver", why).code();
  auto* context = new (std::nothrow) Context{host, library, nullptr};
  if (context == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *context_out = context;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Context*>(context); }

// The component's lock is held. Patches the code unless that was done before. Errors as patch::prepare() and
// patch::activate(), and NOT_SUPPORTED if another library changed our patch; each prints a message.
Status patch_site_locked(const Context& context, Site* site) REQUIRES(mutex) {
  Status status = success();
  if (site->patch.count != 0) {
    if (!patch::is_in_place(site->patch)) status = PINRAIL_ERR_NOT_SUPPORTED;
  } else {
    status = patch::prepare(site->address, {patch::kNoCall}, free_hook, site, &site->patch);
    site->original.store(site->patch.original, std::memory_order_release);  // release: pairs with free_hook()
    if (status.ok()) status = patch::activate(&site->patch);
  }
  if (status.ok()) return status;
  const std::string bytes = patch::bytes_of(site->address);
  show(context.host, "unknown code", {{"function", site->function->symbol}, {"bytes", bytes.c_str()}});
  return status;
}

// Returns the site of that address, whatever function it was found for; a new one if there is none.
Site* find_or_add_site_locked(uintptr_t address, const Function& function) REQUIRES(mutex) {
  for (Site& site : sites) {
    if (site.address != 0 && site.address != address) continue;
    if (site.address == 0) {
      site.address = address;
      site.function = &function;
    }
    return &site;
  }
  return nullptr;  // sessions with other libraries have used them up: a site stays, as its patch does
}

// The entry points of a function: the symbol, and what cuGetProcAddress returns for the name, with the process-wide
// default stream and with the per-thread one. 0: there is none.
using Addresses = std::array<uintptr_t, kMaxAddresses>;
Addresses addresses_of(const Context& context, const Function& function) {
  using Version = int (*)(int*);
  using Find = int (*)(const char*, void**, int, uint64_t);
  constexpr uint64_t kFlags[] = {0, 2};
  const auto version_of = reinterpret_cast<Version>(dlsym(context.library, "cuDriverGetVersion"));
  const auto find = reinterpret_cast<Find>(dlsym(context.library, "cuGetProcAddress"));
  Addresses found{{reinterpret_cast<uintptr_t>(dlsym(context.library, function.symbol)), 0, 0}};
  int version = 0;
  if (version_of == nullptr || find == nullptr || version_of(&version) != 0) return found;
  for (size_t i = 0; i < 2; ++i) {
    void* code = nullptr;
    if (find(function.name, &code, version, kFlags[i]) == 0) found[i + 1] = reinterpret_cast<uintptr_t>(code);
  }
  return found;
}

Status patch_function_locked(const Context& context, const Function& function) REQUIRES(mutex) {
  const Addresses addresses = addresses_of(context, function);
  if (addresses[0] == 0 && !function.may_lack) return PINRAIL_ERR_NOT_SUPPORTED;
  for (const uintptr_t address : addresses) {
    if (address == 0) continue;
    Site* const site = find_or_add_site_locked(address, function);
    if (site == nullptr) {
      log_reason(context.host, "no room", "this process has watched the frees of too many other driver libraries");
      return PINRAIL_ERR_OUT_OF_RESOURCE;
    }
    const Status status = patch_site_locked(context, site);
    if (!status.ok()) return status;
  }
  return success();
}

// Keeps E5: a free of address 0 does nothing, and must be seen through each entry point of the function.
bool sees(const Context& context) {
  using Free = int (*)(unsigned long long);
  for (const uintptr_t address : addresses_of(context, kFunctions[0])) {
    if (address == 0) continue;
    const uint64_t before = shared.probes.load();
    reinterpret_cast<Free>(address)(0);  // NOLINT(performance-no-int-to-ptr): an address of code
    if (shared.probes.load() == before) return false;
  }
  return true;
}

// Takes one of the process's listeners. OUT_OF_RESOURCE: all are in use. NOT_SUPPORTED: the kernel would leave them to
// a child.
Status take_listener(Context* context) {
  if (madvise(&shared, sizeof(shared), MADV_WIPEONFORK) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  for (Listener& listener : shared.listeners) {
    const pinrail_host_t* unused = nullptr;
    if (!listener.compare_exchange_strong(unused, context->host)) continue;
    context->listener = &listener;
    return success();
  }
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

// Patches all functions, tests the patches, and starts to listen.
Status begin(Context* context) {
  if (!patch::pin_object_of(reinterpret_cast<const void*>(&free_hook))) return PINRAIL_ERR_NOT_SUPPORTED;
  {
    Guard guard(mutex);
    for (const Function& function : kFunctions) {
      const Status status = patch_function_locked(*context, function);
      if (!status.ok()) return status;
    }
  }
  if (!sees(*context)) return PINRAIL_ERR_NOT_SUPPORTED;
  return take_listener(context);
}

pinrail_status_t start(void* context) { return begin(static_cast<Context*>(context)).code(); }

// Ends the reports; returns after the last hook has left the library.
void stop(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  if (context->listener == nullptr) return;
  context->listener->store(nullptr);
  context->listener = nullptr;
  while (shared.in_flight.load() != 0) sched_yield();
}

constexpr pinrail_monitor_ops_t kOps = {
    sizeof(pinrail_monitor_ops_t), start, stop, nullptr, nullptr, nullptr, PINRAIL_KIND_GPU};

// Its priority is negative: until it was seen on a real driver, the driver's code is patched only if the user names
// this monitor.
constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MONITOR_ABI, -1, "monitor", "cuda",
                         "Sees frees of GPU memory, by patching the CUDA driver library.", open, close, &kOps),
                kHelp, kParams);

}  // namespace

// Hook context: runs at the start of the driver's free functions.

Shared shared;

// Reports the range to all listeners. stop() waits until in_flight is 0.
static void report_range_hook(uintptr_t base, size_t length) {
  for (Listener& listener : shared.listeners) {
    shared.in_flight.fetch_add(1);
    const pinrail_host_t* host = listener.load();
    if (host != nullptr) host->monitor_report_hook(host, base, length);
    shared.in_flight.fetch_sub(1);
  }
}

// Where the driver knows the length only the address is reported: a registration that contains it overlaps the report.
bool free_hook(void* site_pointer, long number, const long* args, long* result_out) {
  const Site& site = *static_cast<const Site*>(site_pointer);
  const auto base = static_cast<uintptr_t>(args[0]);
  const Frees frees = site.function->frees;
  if (frees == Frees::everything) {
    report_range_hook(0, UINTPTR_MAX);
  } else if (base == 0) {
    shared.probes.fetch_add(1);
  } else {
    report_range_hook(base, frees == Frees::range ? static_cast<size_t>(args[1]) : 1);
  }
  // acquire: pairs with the release store in patch_site_locked().
  const patch::Record* const original = site.original.load(std::memory_order_acquire);
  return original != nullptr && patch::call_original_hook(original, number, args, result_out);
}

}  // namespace pinrail::cuda_monitor

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::cuda_monitor::kComponent;
