// SPDX-License-Identifier: BSD-3-Clause
// bench_ucx.cc - UCX's ucs_rcache as libucx-dev has it: its LRU list on (the default), its memory hooks installed.
extern "C" {
#include <ucm/api/ucm.h>
#include <ucs/memory/rcache.h>
}
#include <dlfcn.h>
#include <ucp/api/ucp_version.h>  // the one header that tells the version of UCX

#include <limits>

#include "test/bench/rows.h"

namespace {

ucm_event_callback_t unmap_callback;
void* unmap_argument;

}  // namespace

// In the way of UCX's own: the callback that a cache asks to have called when memory goes away is what "invalidate"
// means there, and it has no other name outside of the library.
extern "C" __attribute__((visibility("default"))) ucs_status_t ucm_set_event_handler(int events, int priority,
                                                                                     ucm_event_callback_t callback,
                                                                                     void* argument) {
  using Original = ucs_status_t (*)(int, int, ucm_event_callback_t, void*);
  static const auto original = reinterpret_cast<Original>(dlsym(RTLD_NEXT, "ucm_set_event_handler"));
  if ((events & UCM_EVENT_VM_UNMAPPED) != 0) {
    unmap_callback = callback;
    unmap_argument = argument;
  }
  return original(events, priority, callback, argument);
}

namespace pinrail::bench {

namespace {

ucs_status_t register_mem(void*, ucs_rcache_t*, void*, ucs_rcache_region_t*, uint16_t) {
  register_calls().count_one();
  return UCS_OK;
}
void deregister_mem(void*, ucs_rcache_t*, ucs_rcache_region_t*) {}
void dump_region(void*, ucs_rcache_t*, ucs_rcache_region_t*, char* text, size_t size) {
  if (size != 0) *text = 0;
}

// UCX 1.13 has the alignment among the parameters, 1.18 among the arguments of each call, beside an operation "merge".
// Its headers do not tell which of them they have; the types do.
template <class Ops>
auto set_merge(Ops* ops, int) -> decltype(void(ops->merge)) {
  ops->merge = [](void*, ucs_rcache_t*, void*, ucs_rcache_region_t*) {};
}
template <class Ops>
void set_merge(Ops*, ...) {}

template <class Params>
auto set_alignment(Params* params, int) -> decltype(void(params->max_alignment)) {
  params->alignment = UCS_RCACHE_MIN_ALIGNMENT;
  params->max_alignment = kPage;
}
template <class Params>
void set_alignment(Params*, ...) {}

using Get = ucs_status_t (*)(ucs_rcache_t*, void*, size_t, int, void*, ucs_rcache_region_t**);
using AlignedGet = ucs_status_t (*)(ucs_rcache_t*, void*, size_t, size_t, int, void*, ucs_rcache_region_t**);
[[maybe_unused]] ucs_status_t get_region(Get get, ucs_rcache_t* cache, void* address, size_t length,
                                         ucs_rcache_region_t** out) {
  return get(cache, address, length, PROT_READ | PROT_WRITE, nullptr, out);
}
[[maybe_unused]] ucs_status_t get_region(AlignedGet get, ucs_rcache_t* cache, void* address, size_t length,
                                         ucs_rcache_region_t** out) {
  return get(cache, address, length, UCS_RCACHE_MIN_ALIGNMENT, PROT_READ | PROT_WRITE, nullptr, out);
}

const ucs_rcache_ops_t& zero_cost() {
  static const ucs_rcache_ops_t operations = [] {
    ucs_rcache_ops_t ops{};
    ops.mem_reg = register_mem;
    ops.mem_dereg = deregister_mem;
    ops.dump_region = dump_region;
    set_merge(&ops, 0);
    return ops;
  }();
  return operations;
}

class UcxCache {
 public:
  using Ref = ucs_rcache_region_t*;
  static std::string version() { return "UCX " + std::to_string(UCP_API_MAJOR) + "." + std::to_string(UCP_API_MINOR); }

  UcxCache(const Options& options, int*, char***) {
    ucs_rcache_params_t params{};
    params.region_struct_size = sizeof(ucs_rcache_region_t);
    set_alignment(&params, 0);
    params.ucm_events = UCM_EVENT_VM_UNMAPPED;
    params.ucm_event_priority = 1000;
    params.ops = &zero_cost();
    params.max_regions = options.limit != 0 ? options.limit : std::numeric_limits<unsigned long>::max();
    params.max_size = SIZE_MAX;
    params.max_unreleased = SIZE_MAX;
    if (ucs_rcache_create(&params, "bench", nullptr, &cache_) != UCS_OK) fail("ucs_rcache_create");
    if (unmap_callback == nullptr) fail("ucs_rcache asked for no events");
  }

  Ref register_range(void* address, size_t length) {
    Ref region;
    const ucs_status_t status = get_region(ucs_rcache_get, cache_, address, length, &region);
    if (status != UCS_OK) fail("ucs_rcache_get");
    return region;
  }
  void deregister(Ref region) { ucs_rcache_region_put(cache_, region); }
  void invalidate(void* address, size_t length) {
    ucm_event_t event{};
    event.vm_unmapped.address = address;
    event.vm_unmapped.size = length;
    unmap_callback(UCM_EVENT_VM_UNMAPPED, &event, unmap_argument);
  }
  void unmap(void* address, size_t length) { munmap(address, length); }

 private:
  ucs_rcache_t* cache_ = nullptr;
};

}  // namespace

}  // namespace pinrail::bench

int main(int argc, char** argv) { return pinrail::bench::run_program<pinrail::bench::UcxCache>(argc, argv); }
