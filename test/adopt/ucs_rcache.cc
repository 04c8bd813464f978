// SPDX-License-Identifier: BSD-3-Clause
#include "test/adopt/ucs_rcache.h"

#include <sys/mman.h>

#include <memory>
#include <new>

namespace pinrail::adopt {
namespace {

// The get that is under way on this thread.
struct Get {
  void* arg;
  Status status;  // of mem_reg
  bool registered;
};
thread_local Get* current_get = nullptr;

uint32_t access_of(int prot) {
  uint32_t access = 0;
  if ((prot & PROT_READ) != 0) access |= PINRAIL_ACCESS_REMOTE_READ;
  if ((prot & PROT_WRITE) != 0) access |= PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE;
  return access;
}

int prot_of(uint32_t rights) {
  int prot = 0;
  if ((rights & PINRAIL_ACCESS_REMOTE_READ) != 0) prot |= PROT_READ;
  if ((rights & PINRAIL_ACCESS_REMOTE_WRITE) != 0) prot |= PROT_WRITE;
  return prot;
}

// OUT_OF_RESOURCE makes Pinrail evict and call mem_reg again.
pinrail_status_t to_pinrail(Status status) {
  if (status == kOk) return PINRAIL_SUCCESS;
  return status == kNoMemory || status == kNoResource ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_ERROR;
}

Status from_pinrail(pinrail_status_t status) {
  switch (status) {
    case PINRAIL_SUCCESS: return kOk;
    case PINRAIL_ERR_BAD_PARAM: return kInvalidParam;
    case PINRAIL_ERR_NOT_SUPPORTED: return kUnsupported;
    case PINRAIL_ERR_OUT_OF_RESOURCE:
    case PINRAIL_ERR_TEMP_OUT_OF_RESOURCE: return kNoMemory;
    default: return kIoError;
  }
}

pinrail_handle_t handle_of(const Region* region) {
  return pinrail_registration_handle(pinrail_registration_of_tail(region));
}

// A miss calls it on the thread of the get, and so current_get is that get.
pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* const rcache = static_cast<Rcache*>(context);
  auto* const region = static_cast<Region*>(pinrail_registration_tail(reg));
  region->start = reinterpret_cast<uintptr_t>(request->addr);
  region->end = region->start + request->length;
  region->prot = prot_of(request->rights);
  region->held = 0;
  region->is_invalid = false;
  region->completions = nullptr;
  Get* const get = current_get;
  const Status status = rcache->params.ops->mem_reg(rcache->params.context, rcache, get->arg, region);
  get->status = status;
  if (status != kOk) return to_pinrail(status);
  get->registered = true;
  ++rcache->regs;
  ++rcache->regions;
  rcache->bytes += request->length;
  return PINRAIL_SUCCESS;
}

Completion* take_completions(Rcache* rcache, Region* region) {
  const std::lock_guard<std::mutex> hold(rcache->mutex);
  Completion* const first = region->completions;
  region->completions = nullptr;
  return first;
}

// Also of a region whose last reference is put after region_invalidate(): then in that put, on its thread.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)reason;
  auto* const rcache = static_cast<Rcache*>(context);
  auto* const region = static_cast<Region*>(pinrail_registration_tail(reg));
  Completion* completion = take_completions(rcache, region);
  rcache->params.ops->mem_dereg(rcache->params.context, rcache, region);
  ++rcache->deregs;
  --rcache->regions;
  rcache->bytes -= reg->length;
  while (completion != nullptr) {
    Completion* const next = completion->next;
    completion->function(completion->arg);
    completion = next;
  }
  return PINRAIL_SUCCESS;
}

void count_event(void* arg, void* addr, size_t length) {
  (void)addr;
  (void)length;
  ++static_cast<Rcache*>(arg)->unmaps;
}

// Evicts what is idle while a limit is passed, and never the region of this get, which is referenced.
void keep_limits(Rcache* rcache) {
  while (rcache->regions > rcache->params.max_regions || rcache->bytes > rcache->params.max_size) {
    if (pinrail_mpool_evict(rcache->pool) != PINRAIL_SUCCESS) return;  // nothing is idle
  }
}

pinrail_registrar_t table_of(Rcache* rcache) {
  pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = "ucs_rcache";
  table.context = rcache;
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = rcache->params.alignment;
  table.tail_size = rcache->params.region_struct_size;
  if (rcache->params.ops != nullptr && rcache->params.ops->mem_reg != nullptr) table.register_mem = register_mem;
  if (rcache->params.ops != nullptr && rcache->params.ops->mem_dereg != nullptr) table.deregister_mem = deregister_mem;
  return table;
}

}  // namespace

Status rcache_create(const Params& params, const char* name, Rcache** rcache_out) {
  if (params.region_struct_size < sizeof(Region)) return kInvalidParam;
  auto rcache = std::make_unique<Rcache>();
  rcache->params = params;
  rcache->table = table_of(rcache.get());
  // A region has the rights and the range that were asked for; Pinrail itself would register more.
  const pinrail_setting_t as_asked[] = {{"mpool_grdma_rights", "asked"}, {"mpool_grdma_extent", "0"}};
  pinrail_init_options_t settings = PINRAIL_INIT_OPTIONS_INIT;
  settings.defaults = as_asked;
  settings.default_count = 2;
  pinrail_status_t status = pinrail_init(&settings);
  if (status != PINRAIL_SUCCESS) return from_pinrail(status);
  const pinrail_registrar_choice_t choice = {nullptr, &rcache->table, nullptr};
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.size_limit = 0;  // keep_limits() keeps them
  options.count_limit = 0;
  status = pinrail_mpool_create("grdma", &choice, name, &options, &rcache->pool);
  if (status == PINRAIL_SUCCESS) status = pinrail_monitor_subscribe(count_event, rcache.get(), &rcache->events);
  if (status != PINRAIL_SUCCESS) {
    if (rcache->pool != nullptr) (void)pinrail_mpool_destroy(rcache->pool, 0);
    (void)pinrail_finalize();
    return from_pinrail(status);
  }
  *rcache_out = rcache.release();
  return kOk;
}

void rcache_destroy(Rcache* rcache) {
  pinrail_monitor_unsubscribe(rcache->events);
  (void)pinrail_mpool_destroy(rcache->pool, PINRAIL_DESTROY_FORCE);
  (void)pinrail_finalize();
  delete rcache;
}

Status rcache_get(Rcache* rcache, void* address, size_t length, size_t alignment, int prot, void* arg,
                  Region** region_out) {
  const auto start = reinterpret_cast<uintptr_t>(address) & ~(alignment - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(address) + length + alignment - 1) & ~(alignment - 1);
  Get get = {arg, kOk, false};
  Get* const outer = current_get;
  current_get = &get;
  pinrail_handle_t handle;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded down from the caller's
  const pinrail_status_t status =
      pinrail_mpool_register(rcache->pool, reinterpret_cast<void*>(start), end - start, access_of(prot), 0, &handle);
  current_get = outer;
  if (status != PINRAIL_SUCCESS) return get.status != kOk ? get.status : from_pinrail(status);
  ++rcache->gets;
  if (get.registered) keep_limits(rcache);
  *region_out = static_cast<Region*>(pinrail_registration_tail(handle.reg));
  return kOk;
}

void rcache_region_hold(Region* region) { ++region->held; }

void rcache_region_put(Rcache* rcache, Region* region) {
  ++rcache->puts;
  uint32_t held = region->held;
  while (held != 0) {
    if (region->held.compare_exchange_weak(held, held - 1)) return;
  }
  (void)pinrail_mpool_deregister(handle_of(region));
}

void rcache_region_invalidate(Rcache* rcache, Region* region, Completion* completion) {
  {
    const std::lock_guard<std::mutex> hold(rcache->mutex);
    completion->next = region->completions;
    region->completions = completion;
  }
  if (region->is_invalid.exchange(true)) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as register_mem() got it
  (void)pinrail_mpool_invalidate_range(rcache->pool, reinterpret_cast<void*>(region->start),
                                       region->end - region->start);
}

bool rcache_region_is_cached(Rcache* rcache, Region* region) {
  pinrail_handle_t found;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as register_mem() got it
  if (pinrail_mpool_find(rcache->pool, reinterpret_cast<void*>(region->start), region->end - region->start,
                         access_of(region->prot), &found) != PINRAIL_SUCCESS) {
    return false;
  }
  const bool is_it = pinrail_handle_equal(found, handle_of(region)) != 0;
  (void)pinrail_mpool_deregister(found);
  return is_it;
}

Stats rcache_stats(Rcache* rcache) {
  pinrail_mpool_stats_t of_pool;
  of_pool.size = sizeof(of_pool);
  (void)pinrail_mpool_read_stats(rcache->pool, &of_pool);
  return {rcache->gets, rcache->puts,   of_pool.hits,   of_pool.misses,
          rcache->regs, rcache->deregs, rcache->unmaps, of_pool.invalidations};
}

}  // namespace pinrail::adopt
