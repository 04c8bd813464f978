// SPDX-License-Identifier: BSD-3-Clause
// Memory that is registered already (pinrail/alloc.h documents the public functions). API context; the caller holds no
// lock. A pool's allocator is made by its first allocation.
#include <pinrail/alloc.h>

#include <algorithm>

#include "base/core/calling_thread.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "framework/api/api.h"
#include "framework/api/api_fork.h"
#include "framework/mpool/allocator.h"

namespace pinrail::api {
namespace {

using mpool::Allocator;

constexpr uint32_t kWithoutAtomics = PINRAIL_RIGHTS_MASK & ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC};

void drop(pinrail_handle_t handle) { Status(pinrail_mpool_deregister(handle)).ignore(); }

// With atomics if the device has them. NOT_SUPPORTED: the registration is not in the index, so later calls cannot hit
// it.
Status pin(void* pool_pointer, void* addr, size_t length, pinrail_handle_t* handle_out) {
  auto* const pool = static_cast<pinrail_mpool_t*>(pool_pointer);
  const deferred::CallerScope scope;
  pinrail_handle_t handle;
  Status status = pinrail_mpool_register(pool, addr, length, PINRAIL_RIGHTS_MASK, PINRAIL_FLAG_PERSISTENT, &handle);
  const bool may_lack_atomics = !status.ok() && !status.is_lack();
  if (may_lack_atomics) {
    status = pinrail_mpool_register(pool, addr, length, kWithoutAtomics, PINRAIL_FLAG_PERSISTENT, &handle);
  }
  if (!status.ok()) return status;
  if (!is_indexed(handle.reg)) {
    drop(handle);
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  *handle_out = handle;
  return status;
}

void unpin(void*, pinrail_handle_t handle) {
  const deferred::CallerScope scope;
  drop(handle);
}

mpool::AllocatorSettings settings_of(const param::Registry& params, const pinrail_registrar_t& device) {
  constexpr size_t kSlab = Allocator::kSlab;
  mpool::AllocatorSettings settings;
  settings.region_bytes = (static_cast<size_t>(params.value("mpool_alloc_region").u) + kSlab - 1) / kSlab * kSlab;
  settings.keep_bytes = static_cast<size_t>(params.value("mpool_alloc_keep").u);
  settings.one_each = params.value("mpool_alloc_backing").i != 0;
  settings.unit = std::max(settings.unit, device.granularity);
  return settings;
}

// The pool's allocator, made on first use. acquire: pairs with the exchange.
Allocator* allocator_of(pinrail_mpool_t* pool) {
  Allocator* allocator = pool->allocator.load(std::memory_order_acquire);
  if (allocator != nullptr) return allocator;
  auto made = std::make_unique<Allocator>(mpool::Pinner{pool, pin, unpin},
                                          settings_of(*the_registry(), pool->registrar->table));
  if (pool->allocator.compare_exchange_strong(allocator, made.get())) return made.release();
  return allocator;
}

const char* fault_of(size_t length, size_t alignment, int node) {
  if (length == 0) return "length is 0";
  if ((alignment & (alignment - 1)) != 0) return "alignment is not a power of two";
  if (alignment > Allocator::kSlab) return "alignment is more than 2 MiB";
  return node < PINRAIL_NODE_ANY || node >= Allocator::kNodes ? "numa_node is no node's number" : nullptr;
}

// Calls function(allocator, number of the thread). in_child: the status in a forked child.
template <typename Function>
pinrail_status_t with_allocator(pinrail_mpool_t* pool, pinrail_status_t in_child, Function&& function) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if (is_inherited(pool)) return in_child;
  return guarded([&]() -> Status {
    const pinrail_thread_t* const thread = thread::current();
    if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
    return function(allocator_of(pool), thread->index);
  });
}

}  // namespace
}  // namespace pinrail::api

using namespace pinrail;
using api::refuse;
using mpool::Allocator;

pinrail_status_t pinrail_mpool_alloc(pinrail_mpool_t* pool, size_t length, size_t alignment, int numa_node,
                                     void** addr_out) {
  constexpr const char* kCall = "pinrail_mpool_alloc";
  if (pool == nullptr || addr_out == nullptr) return refuse(kCall, "pool or addr_out is NULL");
  const char* const fault = api::fault_of(length, alignment, numa_node);
  if (fault != nullptr) return refuse(kCall, fault);
  return api::with_allocator(pool, PINRAIL_ERR_NOT_AVAILABLE, [&](Allocator* allocator, uint32_t thread) {
    return allocator->alloc(thread, length, alignment, numa_node, addr_out);
  });
}

pinrail_status_t pinrail_mpool_realloc(pinrail_mpool_t* pool, void* addr, size_t length, void** addr_out) {
  constexpr const char* kCall = "pinrail_mpool_realloc";
  if (pool == nullptr || addr_out == nullptr) return refuse(kCall, "pool or addr_out is NULL");
  if (length == 0) return refuse(kCall, "length is 0");
  const pinrail_status_t status = api::with_allocator(
      pool, PINRAIL_ERR_NOT_AVAILABLE,
      [&](Allocator* allocator, uint32_t thread) { return allocator->realloc(thread, addr, length, addr_out); });
  return status == PINRAIL_ERR_BAD_PARAM ? refuse(kCall, "addr is not an allocation of this pool") : status;
}

pinrail_status_t pinrail_mpool_free(pinrail_mpool_t* pool, void* addr) {
  constexpr const char* kCall = "pinrail_mpool_free";
  if (pool == nullptr) return refuse(kCall, "pool is NULL");
  if (addr == nullptr) return PINRAIL_SUCCESS;
  const pinrail_status_t status = api::with_allocator(
      pool, PINRAIL_SUCCESS, [&](Allocator* allocator, uint32_t thread) { return allocator->free(thread, addr); });
  return status == PINRAIL_ERR_BAD_PARAM ? refuse(kCall, "addr is not an allocation of this pool, or was freed before")
                                         : status;
}

pinrail_status_t pinrail_mpool_alloc_read_stats(pinrail_mpool_t* pool, pinrail_alloc_stats_t* stats_out) {
  constexpr const char* kCall = "pinrail_mpool_alloc_read_stats";
  if (pool == nullptr || stats_out == nullptr) return refuse(kCall, "pool or stats_out is NULL");
  if (stats_out->size != sizeof(*stats_out))
    return refuse(kCall, "stats_out->size is not sizeof(pinrail_alloc_stats_t)");
  return api::with_allocator(pool, PINRAIL_ERR_NOT_AVAILABLE, [&](Allocator* allocator, uint32_t) {
    allocator->stats(stats_out);
    return success();
  });
}
