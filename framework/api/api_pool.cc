// SPDX-License-Identifier: BSD-3-Clause
// Creation and destruction of pools. API context. The caller holds no lock; Library::mutex guards the list of pools.
// The program may hold references; destroy then returns BUSY, unless it is forced.
#include <pinrail/alloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/registration/registration.h"
#include "base/report/report.h"
#include "framework/api/api.h"
#include "framework/api/pin_job.h"
#include "framework/mpool/allocator.h"
#include "framework/mpool/gc_thread.h"

namespace pinrail::api {
namespace {

// Each change is one store: a forked child finds the list in a valid state.
std::atomic<pinrail_mpool*> pools{nullptr};  // changed under Library::mutex, read without a lock

void unlink_locked([[maybe_unused]] const Library& in, const pinrail_mpool* pool) REQUIRES(in.mutex) {
  std::atomic<pinrail_mpool*>* at = &pools;
  while (at->load() != pool) at = &at->load()->next;
  at->store(pool->next.load());
}

// Whether the pool is in the list. The caller holds Library::mutex, unless Pinrail is not initialised.
bool is_known(const pinrail_mpool* pool) {
  for (const pinrail_mpool* each = first_pool(); each != nullptr; each = each->next.load()) {
    if (each == pool) return true;
  }
  return false;
}

// The same; takes Library::mutex.
bool is_known_now(Library* in, const pinrail_mpool_t* pool) {
  Guard guard(in->mutex);
  return is_known(pool);
}

bool is_limit(int64_t option) { return option == PINRAIL_UNSET || option >= 0; }

// Returns a clause that names the fault; NULL: no fault.
const char* fault_of(const pinrail_mpool_options_t& options) {
  if (options.size != sizeof(options)) return "options->size is not sizeof(pinrail_mpool_options_t)";
  if ((options.flags & ~uint32_t{PINRAIL_POOL_EXACT}) != 0)
    return "options->flags has bits that pinrail.h does not name";
  if (options.leave_pinned != PINRAIL_UNSET && (options.leave_pinned < -1 || options.leave_pinned > 1)) {
    return "options->leave_pinned is none of -1, 0, 1 and PINRAIL_UNSET";
  }
  if (!is_limit(options.size_limit)) return "options->size_limit is negative and not PINRAIL_UNSET";
  return is_limit(options.count_limit) ? nullptr : "options->count_limit is negative and not PINRAIL_UNSET";
}

// Another process asks for what only a walk over the registrations tells.
int show_use(void* pool_pointer, pinrail_thread_t*) {
  auto* const pool = static_cast<pinrail_mpool*>(pool_pointer);
  (void)guarded([&] { pool->recorder.show_use(stats_of(pool)); });
  return 0;
}

// Without memory nothing is shown.
void begin_to_show_use(pinrail_mpool* pool) {
  (void)guarded([&] { return gc::join(show_use, pool, 0, pool->recorder.bell(), &pool->looker); });
}

// Creates a pool and links it. Holds Library::mutex only while it links.
Status create(const char* mpool, const pinrail_registrar_choice_t& registrar, const char* cache_name,
              const pinrail_mpool_options_t* given, pinrail_mpool_t** pool_out) {
  Library* const in = library();
  constexpr const char* kCall = "pinrail_mpool_create";
  if (pool_out == nullptr) return refuse(kCall, "pool_out is NULL");
  if (in == nullptr) return refuse(kCall, kBeforeInit);
  if (is_in_init_or_finalize()) return PINRAIL_ERR_BUSY;  // finalize would unload the components under the pool
  const pinrail_mpool_options_t none = PINRAIL_MPOOL_OPTIONS_INIT;
  const pinrail_mpool_options_t& options = given != nullptr ? *given : none;  // no copy before its size was checked
  if (const char* const fault = fault_of(options)) return refuse(kCall, fault);
  if (registrar.native != nullptr && registrar.name == nullptr && registrar.table == nullptr) {
    return refuse(kCall, "registrar->native is set and registrar->name is NULL: which component knows it must be said");
  }
  std::unique_ptr<pinrail_mpool> pool;
  const Status status = mpool::create(*in->loader, in->params, mpool, registrar, cache_name, options, &pool);
  if (!status.ok()) return status;
  begin_to_show_use(pool.get());
  Guard guard(in->mutex);
  pool->next.store(pools.load());
  pools.store(pool.get());
  *pool_out = pool.release();
  return success();
}

// Destroys the pool's module. BUSY: a registration is referenced, and nothing has changed. An event that a signal
// handler has reported of this pool may wait on its thread to be delivered, and holds the gate meanwhile.
Status destroy(pinrail_mpool_t* pool, uint32_t flags) {
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  gate::wait_until_released();
  if (pool->looker != nullptr) gc::leave(std::exchange(pool->looker, nullptr));
  const Status destroyed = pool->ops->destroy(pool->module, thread, flags);
  if (!destroyed.ok()) begin_to_show_use(pool);
  if (destroyed.ok() && pool->check != nullptr) {
    (void)guarded([&] { report::log(pool->name, 0, PINRAIL_LOG_WARN, pool->check->result()); });
  }
  return destroyed;
}

// BUSY, with a message: memory of the pool is allocated, or helper threads work for it.
Status refuse_in_use(pinrail_mpool_t* pool) {
  pinrail_alloc_stats_t totals{};
  mpool::Allocator* const allocator = pool->allocator.load();
  if (allocator != nullptr) allocator->stats(&totals);
  const char* why = nullptr;
  if (totals.allocations != 0) why = "memory of the pool is allocated (pinrail_mpool_alloc)";
  if (pool->works.is_any_unfinished()) why = "a pinrail_mpool_prepin_start() or a stream of chunks has not ended";
  if (why == nullptr) return success();
  help("pool in use", {{"pool", pool->name.c_str()}, {"why", why}});
  return PINRAIL_ERR_BUSY;
}

// Gives back what is free, whose registrations are referenced; with PINRAIL_DESTROY_FORCE unpins the rest.
void close_allocator(pinrail_mpool_t* pool, uint32_t flags) {
  mpool::Allocator* const allocator = pool->allocator.load();
  if (allocator != nullptr) allocator->close((flags & PINRAIL_DESTROY_FORCE) != 0).ignore();
}

// Destroys the pool. A parent's pool is kept in a forked child, because its handles may still be dropped.
Status destroy_one(pinrail_mpool_t* pool, uint32_t flags) {
  Library* const in = library();
  constexpr const char* kCall = "pinrail_mpool_destroy";
  constexpr const char* kUnknown = "there is no such pool: it was destroyed, or never made";
  if (pool == nullptr) return refuse(kCall, "pool is NULL");
  if ((flags & ~uint32_t{PINRAIL_DESTROY_FORCE}) != 0) {
    return refuse(kCall, "flags has bits that pinrail.h does not name");
  }
  if (in == nullptr)
    return is_known(pool) ? success() : Status(refuse(kCall, kUnknown));  // only the parent's pools exist
  if (!is_known_now(in, pool)) return refuse(kCall, kUnknown);
  if (is_inherited(pool)) return success();
  if (thread::current() == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;  // it could drop no reference
  if (must_not_wait()) return PINRAIL_ERR_BUSY;
  const bool is_forced = (flags & PINRAIL_DESTROY_FORCE) != 0;
  if (is_forced) pool->works.stop_all();
  const Status used = is_forced ? success() : refuse_in_use(pool);
  if (!used.ok()) return used;
  close_allocator(pool, flags);
  if (is_forced) {
    mpool::PinTable::Pins pins = pool->pins.remove_all();  // after the destroy no unpin could drop their references
    drop_pins(&pins);
  }
  const Status status = destroy(pool, flags);
  if (!status.ok()) return status;
  delete pool->allocator.load();
  pool->works.detach_all();
  Guard guard(in->mutex);
  unlink_locked(*in, pool);
  delete pool;
  return status;
}

// Memory that is registered already (pinrail/alloc.h documents the public functions). API context; the caller holds no
// lock. A pool's allocator is made by its first allocation.

using mpool::Allocator;

constexpr uint32_t kWithoutAtomics = PINRAIL_RIGHTS_MASK & ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC};

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
    drop_pin(handle);
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  *handle_out = handle;
  return status;
}

void unpin(void*, pinrail_handle_t handle) { drop_pin(handle); }

mpool::AllocatorSettings settings_of(const param::Registry& params, const pinrail_registrar_t& device) {
  constexpr size_t kSlab = Allocator::kSlab;
  mpool::AllocatorSettings settings;
  settings.region_bytes = (static_cast<size_t>(params.value("mpool_alloc_region").u) + kSlab - 1) / kSlab * kSlab;
  settings.keep_bytes = static_cast<size_t>(params.value("mpool_alloc_keep").u);
  settings.one_each = params.value("mpool_alloc_backing").i != 0;
  settings.unit = std::max(settings.unit, device.granularity);
  return settings;
}

Allocator* allocator_of(pinrail_mpool_t* pool) {
  Allocator* const allocator = pool->allocator.load(std::memory_order_acquire);  // acquire: as made_on_first_use()
  if (allocator != nullptr) return allocator;  // without a look at parameters, which takes their lock
  return mpool::made_on_first_use(&pool->allocator, mpool::Pinner{pool, pin, unpin},
                                  settings_of(*the_registry(), pool->registrar->table));
}

const char* fault_of(size_t length, size_t alignment, int node) {
  if (length == 0) return "length is 0";
  if ((alignment & (alignment - 1)) != 0) return "alignment is not a power of two";
  if (alignment > Allocator::kSlab) return "alignment is more than 2 MiB";
  return node < PINRAIL_NODE_ANY || node >= Allocator::kNodes ? "numa_node is no node's number" : nullptr;
}

// Calls function(allocator, number of the thread). NOT_AVAILABLE: in a forked child.
template <typename Function>
pinrail_status_t with_allocator(pinrail_mpool_t* pool, Function&& function) {
  return in_call(pool, [&](const pinrail_thread_t* thread) { return function(allocator_of(pool), thread->index); });
}

}  // namespace

bool must_not_wait() {
  const pinrail_thread_t* const thread = thread::current();
  return is_inside_fork() || (thread != nullptr && thread->in_registrar != 0);
}

#ifdef PINRAIL_DEBUG
void check_known(const pinrail_mpool_t* pool) {
  if (gate::is_child()) return;  // library() would reinitialise, and hide a call that does not
  Library* const in = library();
  if (in == nullptr || pool == nullptr || is_known_now(in, pool)) return;
  std::fprintf(stderr, "pinrail: a registration names %p as its pool, which is none: it was overwritten (rule C6)\n",
               static_cast<const void*>(pool));
  std::abort();
}
#endif

pinrail_mpool* first_pool() { return pools.load(); }

// Destroys all pools of this process; BUSY, and none is destroyed, if one is in use or has a referenced registration,
// or the caller is a registrar's function.
Status close_pools(Library* in) {
  if (thread::current() == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;  // it could drop no reference
  if (must_not_wait()) return PINRAIL_ERR_BUSY;
  std::vector<pinrail_mpool_t*> own;
  {
    Guard guard(in->mutex);
    for (pinrail_mpool* pool = first_pool(); pool != nullptr; pool = pool->next.load()) {
      if (!is_inherited(pool)) own.insert(own.begin(), pool);
    }
  }
  // Checks all before it destroys one: BUSY changes nothing. Helper threads come first: one that still works may drop
  // the last reference between the check and destroy_one(), which would then destroy one pool of several.
  for (pinrail_mpool_t* pool : own) {
    const Status used = refuse_in_use(pool);
    if (!used.ok()) return used;
  }
  for (pinrail_mpool_t* pool : own) {
    close_allocator(pool, 0);
    if (pool->ops->referenced(pool->module) != 0) return destroy_one(pool, 0);  // reports the referenced registrations
  }
  for (pinrail_mpool_t* pool : own) {
    const Status status = destroy_one(pool, 0);
    if (!status.ok()) return status;
  }
  return success();
}

}  // namespace pinrail::api

using namespace pinrail;
using api::refuse;

pinrail_status_t pinrail_mpool_create(const char* mpool, const pinrail_registrar_choice_t* registrar,
                                      const char* cache_name, const pinrail_mpool_options_t* options,
                                      pinrail_mpool_t** pool_out) {
  const pinrail_registrar_choice_t any{};
  return api::guarded_call([&] {
    return api::create(mpool, registrar != nullptr ? *registrar : any, cache_name != nullptr ? cache_name : "default",
                       options, pool_out);
  });
}

pinrail_status_t pinrail_mpool_destroy(pinrail_mpool_t* pool, uint32_t flags) {
  return api::guarded_call([&] { return api::destroy_one(pool, flags); });
}

const char* pinrail_mpool_name(const pinrail_mpool_t* pool) { return pool == nullptr ? "" : pool->name.c_str(); }

const char* pinrail_mpool_registrar_name(const pinrail_mpool_t* pool) {
  return pool == nullptr ? "" : pool->registrar->name.c_str();
}

pinrail_status_t pinrail_mpool_alloc(pinrail_mpool_t* pool, size_t length, size_t alignment, int numa_node,
                                     void** addr_out) {
  if (pool == nullptr || addr_out == nullptr) return refuse(__func__, "pool or addr_out is NULL");
  if (const char* const fault = api::fault_of(length, alignment, numa_node)) return refuse(__func__, fault);
  return api::with_allocator(pool, [&](mpool::Allocator* allocator, uint32_t thread) {
    return allocator->alloc(thread, length, alignment, numa_node, addr_out);
  });
}

pinrail_status_t pinrail_mpool_realloc(pinrail_mpool_t* pool, void* addr, size_t length, void** addr_out) {
  if (pool == nullptr || addr_out == nullptr) return refuse(__func__, "pool or addr_out is NULL");
  if (length == 0) return refuse(__func__, "length is 0");
  const pinrail_status_t status = api::with_allocator(pool, [&](mpool::Allocator* allocator, uint32_t thread) {
    return allocator->realloc(thread, addr, length, addr_out);
  });
  return api::report_if_bad(status, __func__, "addr is not an allocation of this pool");
}

pinrail_status_t pinrail_mpool_free(pinrail_mpool_t* pool, void* addr) {
  if (pool == nullptr) return refuse(__func__, "pool is NULL");
  if (addr == nullptr) return PINRAIL_SUCCESS;
  const pinrail_status_t status = api::with_allocator(
      pool, [&](mpool::Allocator* allocator, uint32_t thread) { return allocator->free(thread, addr); });
  if (status == PINRAIL_ERR_NOT_AVAILABLE) return PINRAIL_SUCCESS;  // in a forked child: memory of the parent's pool
  return api::report_if_bad(status, __func__, "addr is not an allocation of this pool, or was freed before");
}

pinrail_status_t pinrail_mpool_alloc_read_stats(pinrail_mpool_t* pool, pinrail_alloc_stats_t* stats_out) {
  if (pool == nullptr || stats_out == nullptr) return refuse(__func__, "pool or stats_out is NULL");
  if (stats_out->size != sizeof(*stats_out))
    return refuse(__func__, "stats_out->size is not sizeof(pinrail_alloc_stats_t)");
  return api::on_pool(pool, [&] { api::allocator_of(pool)->stats(stats_out); });
}
