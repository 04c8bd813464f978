// SPDX-License-Identifier: BSD-3-Clause
// ucx_cache.cc - UCX's ucs_rcache as libucx-dev has it.
#include "test/bench/ucx_cache.h"

extern "C" {
#include <ucm/api/ucm.h>
}
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucp/api/ucp_version.h>  // the one header that tells the version of UCX

#include <limits>

#include "test/bench/measure.h"

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

constexpr size_t kPage = 4096;

ucs_status_t register_mem(void* context, ucs_rcache_t*, void*, ucs_rcache_region_t* region, uint16_t) {
  reinterpret_cast<UcxCache::Registered>(context)(region->super.start, region->super.end);
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
auto set_alignment(Params* params, size_t alignment, int) -> decltype(void(params->max_alignment)) {
  params->alignment = alignment;
  params->max_alignment = kPage;
}
template <class Params>
void set_alignment(Params*, size_t, ...) {}

using Get = ucs_status_t (*)(ucs_rcache_t*, void*, size_t, int, void*, ucs_rcache_region_t**);
using AlignedGet = ucs_status_t (*)(ucs_rcache_t*, void*, size_t, size_t, int, void*, ucs_rcache_region_t**);
[[maybe_unused]] ucs_status_t get_region(Get get, ucs_rcache_t* cache, void* address, size_t length, size_t,
                                         ucs_rcache_region_t** out) {
  return get(cache, address, length, PROT_READ | PROT_WRITE, nullptr, out);
}
[[maybe_unused]] ucs_status_t get_region(AlignedGet get, ucs_rcache_t* cache, void* address, size_t length,
                                         size_t alignment, ucs_rcache_region_t** out) {
  return get(cache, address, length, alignment, PROT_READ | PROT_WRITE, nullptr, out);
}

const ucs_rcache_ops_t& operations() {
  static const ucs_rcache_ops_t all = [] {
    ucs_rcache_ops_t ops{};
    ops.mem_reg = register_mem;
    ops.mem_dereg = deregister_mem;
    ops.dump_region = dump_region;
    set_merge(&ops, 0);
    return ops;
  }();
  return all;
}

}  // namespace

#define PINRAIL_TEXT_OF(number) #number
#define PINRAIL_VERSION_OF(major, minor) "UCX " PINRAIL_TEXT_OF(major) "." PINRAIL_TEXT_OF(minor)
const char* UcxCache::version() { return PINRAIL_VERSION_OF(UCP_API_MAJOR, UCP_API_MINOR); }

UcxCache::UcxCache(Registered registered, size_t alignment, size_t most_regions, size_t most_bytes)
    : alignment_(alignment) {
  ucs_rcache_params_t params{};
  params.region_struct_size = sizeof(ucs_rcache_region_t);
  set_alignment(&params, alignment, 0);
  params.ucm_events = UCM_EVENT_VM_UNMAPPED;
  params.ucm_event_priority = 1000;
  params.context = reinterpret_cast<void*>(registered);
  params.ops = &operations();
  params.max_regions = most_regions != 0 ? most_regions : std::numeric_limits<unsigned long>::max();
  params.max_size = most_bytes != 0 ? most_bytes : SIZE_MAX;
  params.max_unreleased = SIZE_MAX;
  if (ucs_rcache_create(&params, "bench", nullptr, &cache_) != UCS_OK) fail("ucs_rcache_create");
  if (unmap_callback == nullptr) fail("ucs_rcache asked for no events");
}

UcxCache::Ref UcxCache::register_range(void* address, size_t length) {
  Ref region = nullptr;
  return get_region(ucs_rcache_get, cache_, address, length, alignment_, &region) == UCS_OK ? region : nullptr;
}

void UcxCache::invalidate(void* address, size_t length) {
  ucm_event_t event{};
  event.vm_unmapped.address = address;
  event.vm_unmapped.size = length;
  unmap_callback(UCM_EVENT_VM_UNMAPPED, &event, unmap_argument);
}

}  // namespace pinrail::bench
