/* SPDX-License-Identifier: BSD-3-Clause
 * mpool_@NAME@.c - a pool that counts calls and keeps nothing.
 *
 * Each register call reaches the device, and each last deregister gives the registration back. It includes installed
 * headers only, and links against nothing of Pinrail.
 */
#include <pinrail/component_mpool.h>
#include <stdlib.h>
#include <string.h>

#include "hook_lock.h"

enum { TRIES = 4 };

typedef struct component {
  const pinrail_host_t* host;
  size_t max_reg_size; /* parameter */
} component_t;

/* What the pool keeps beside a registration: its links and whether its memory went away. Guarded by the pool's lock. */
typedef struct area {
  pinrail_registration_t *previous, *next;
  int is_gone;
} area_t;

typedef struct pool {
  const pinrail_host_t* host;
  size_t max_reg_size;
  pinrail_mpool_config_t config;
  void* subscription;
  hook_lock_t lock; /* guards all below */
  pinrail_registration_t* first;
  size_t count;
  uint64_t bytes, peak_bytes, misses, invalidations, races;
} pool_t;

static area_t* area_of(const pool_t* pool, const pinrail_registration_t* reg) {
  return pool->host->registrations->area(pool->host, reg);
}

static void link_it(pool_t* pool, pinrail_registration_t* reg) {
  hook_lock_take(&pool->lock);
  area_t* area = area_of(pool, reg);
  area->previous = NULL;
  area->next = pool->first;
  area->is_gone = 0;
  if (area->next != NULL) area_of(pool, area->next)->previous = reg;
  pool->first = reg;
  ++pool->count;
  pool->bytes += reg->length;
  if (pool->bytes > pool->peak_bytes) pool->peak_bytes = pool->bytes;
  hook_lock_release(&pool->lock);
}

/* Returns whether the memory of the registration went away while it was linked. */
static int unlink_it(pool_t* pool, pinrail_registration_t* reg) {
  hook_lock_take(&pool->lock);
  area_t* area = area_of(pool, reg);
  if (area->next != NULL) area_of(pool, area->next)->previous = area->previous;
  if (area->previous != NULL) {
    area_of(pool, area->previous)->next = area->next;
  } else {
    pool->first = area->next;
  }
  --pool->count;
  pool->bytes -= reg->length;
  const int is_gone = area->is_gone;
  hook_lock_release(&pool->lock);
  return is_gone;
}

static int went_away(pool_t* pool, const pinrail_registration_t* reg) {
  hook_lock_take(&pool->lock);
  const int is_gone = area_of(pool, reg)->is_gone;
  hook_lock_release(&pool->lock);
  return is_gone;
}

static void invalidate_range_hook(void* module, uintptr_t base, size_t length) {
  pool_t* pool = module;
  hook_lock_take(&pool->lock);
  for (pinrail_registration_t* reg = pool->first; reg != NULL; reg = area_of(pool, reg)->next) {
    const uintptr_t its_base = (uintptr_t)reg->base;
    if (its_base >= base + length || base >= its_base + reg->length || area_of(pool, reg)->is_gone) continue;
    area_of(pool, reg)->is_gone = 1;
    ++pool->invalidations;
  }
  hook_lock_release(&pool->lock);
}

/* Its memory may be in other use by now: then the registrar must not touch it (R12). */
static void return_to_device(pool_t* pool, pinrail_thread_t* thread, pinrail_registration_t* reg,
                             pinrail_reason_t reason) {
  if (unlink_it(pool, reg)) reason = PINRAIL_REASON_INVALIDATED;
  pool->host->pools->registrar_deregister(pool->config.registrar, thread, reg, reason);
}

static pinrail_status_t make(pool_t* pool, uintptr_t base, size_t length, uint64_t access_and_flags,
                             pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg = NULL;
  const pinrail_status_t status =
      pool->host->registrations->alloc(pool->host, pool->config.limits->tail_size, sizeof(area_t), &reg);
  if (status != PINRAIL_SUCCESS) return status;
  reg->base = (void*)base;
  reg->length = length;
  reg->rights = (uint32_t)access_and_flags & PINRAIL_RIGHTS_MASK;
  reg->traits = (uint32_t)access_and_flags & PINRAIL_TRAITS_MASK;
  reg->flags = (uint32_t)(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
  reg->pool = pool->config.pool;
  *reg_out = reg;
  return PINRAIL_SUCCESS;
}

/* Linked first, so that an event during the registrar call is noticed. */
static pinrail_status_t register_once(pool_t* pool, pinrail_thread_t* thread, pinrail_registration_t* reg,
                                      int* raced_out) {
  const pinrail_register_request_t request = {.size = sizeof(request),
                                              .kind = PINRAIL_KIND_HOST,
                                              .rights = reg->rights,
                                              .traits = reg->traits,
                                              .fd = -1,
                                              .addr = reg->base,
                                              .length = reg->length};
  link_it(pool, reg);
  const pinrail_status_t status = pool->host->pools->registrar_register(pool->config.registrar, thread, &request, reg);
  *raced_out = 0;
  if (status != PINRAIL_SUCCESS) {
    unlink_it(pool, reg);
  } else if (went_away(pool, reg)) {
    *raced_out = 1;
    return_to_device(pool, thread, reg, PINRAIL_REASON_INVALIDATED);
  }
  return status;
}

static pinrail_status_t register_mem(void* module, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                     uint64_t access_and_flags, pinrail_handle_t* handle_out) {
  pool_t* pool = module;
  const pinrail_registrar_t* limits = pool->config.limits;
  const uintptr_t mask = limits->granularity - 1;
  const uintptr_t base = addr & ~mask, end = (addr + length + mask) & ~mask;
  if (base == 0 || end <= base) return PINRAIL_ERR_BAD_PARAM;
  if (limits->max_length != 0 && end - base > limits->max_length) return PINRAIL_ERR_NOT_SUPPORTED;
  for (int tries = 0; tries < TRIES; ++tries) {
    pinrail_registration_t* reg = NULL;
    int raced = 0;
    pinrail_status_t status = make(pool, base, end - base, access_and_flags, &reg);
    if (status != PINRAIL_SUCCESS) return status;
    status = register_once(pool, thread, reg, &raced);
    if (status == PINRAIL_SUCCESS && !raced) {
      hook_lock_take(&pool->lock);
      ++pool->misses;
      hook_lock_release(&pool->lock);
      pool->host->registrations->mark_uncached(reg);
      *handle_out = (pinrail_handle_t){reg, pool->host->registrations->generation(reg)};
      return PINRAIL_SUCCESS;
    }
    pool->host->registrations->free(pool->host, reg);
    if (!raced) return status;
    hook_lock_take(&pool->lock);
    ++pool->races;
    hook_lock_release(&pool->lock);
  }
  return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

static pinrail_status_t deregister(void* module, pinrail_thread_t* thread, pinrail_handle_t handle) {
  pool_t* pool = module;
  switch (pool->host->registrations->drop(handle)) {
    case PINRAIL_DROP_STALE: return PINRAIL_ERR_BAD_PARAM;
    case PINRAIL_DROP_LAST:
      return_to_device(pool, thread, handle.reg, PINRAIL_REASON_RELEASED);
      pool->host->registrations->free(pool->host, handle.reg);
      return PINRAIL_SUCCESS;
    default: return PINRAIL_SUCCESS;
  }
}

/* Each registration has a reference, for it ends with its last one. */
static size_t referenced(void* module) {
  pool_t* pool = module;
  hook_lock_take(&pool->lock);
  const size_t count = pool->count;
  hook_lock_release(&pool->lock);
  return count;
}

static pinrail_status_t destroy(void* module, pinrail_thread_t* thread, uint32_t flags) {
  pool_t* pool = module;
  if ((flags & PINRAIL_DESTROY_FORCE) == 0 && referenced(pool) != 0) return PINRAIL_ERR_BUSY;
  while (pool->first != NULL) { /* no other call is on this pool; hooks change no links */
    pinrail_registration_t* reg = pool->first;
    return_to_device(pool, thread, reg, PINRAIL_REASON_FINALIZED);
    /* One that is referenced is the library's from now on, until its last handle was dropped. */
    if (pool->host->registrations->orphan(reg)) pool->host->registrations->free(pool->host, reg);
  }
  pool->host->monitor_unsubscribe(pool->host, pool->subscription);
  pthread_mutex_destroy(&pool->lock.mutex);
  free(pool);
  return PINRAIL_SUCCESS;
}

/* In a forked child, too: without the lock. */
static void counters(void* module, pinrail_mpool_stats_t* stats_out) {
  const pool_t* pool = module;
  stats_out->misses = pool->misses;
  stats_out->invalidations = pool->invalidations;
  stats_out->races = pool->races;
  stats_out->peak_registered_bytes = pool->peak_bytes;
  stats_out->size_limit = stats_out->count_limit = UINT64_MAX;
}

static pinrail_status_t stats(void* module, pinrail_mpool_stats_t* stats_out) {
  pool_t* pool = module;
  const size_t size = stats_out->size;
  memset(stats_out, 0, sizeof(*stats_out));
  stats_out->size = size;
  hook_lock_take(&pool->lock);
  counters(pool, stats_out);
  stats_out->registered_bytes = pool->bytes;
  stats_out->registered_count = pool->count;
  hook_lock_release(&pool->lock);
  return PINRAIL_SUCCESS;
}

static size_t max_reg_size(void* module) {
  const pool_t* pool = module;
  return pool->max_reg_size;
}

static pinrail_status_t create(void* component_pointer, const pinrail_mpool_config_t* config, void** module_out) {
  const component_t* component = component_pointer;
  const pinrail_host_t* host = component->host;
  if ((config->limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  pool_t* pool = calloc(1, sizeof(*pool));
  if (pool == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  pool->host = host;
  pool->max_reg_size = component->max_reg_size;
  pool->config = *config;
  if (hook_lock_init(&pool->lock, host) != 0) {
    free(pool);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  const pinrail_status_t status =
      host->monitor_subscribe(host, PINRAIL_KIND_HOST, invalidate_range_hook, pool, &pool->subscription);
  if (status != PINRAIL_SUCCESS) {
    pthread_mutex_destroy(&pool->lock.mutex);
    free(pool);
    return status;
  }
  *module_out = pool;
  return PINRAIL_SUCCESS;
}

static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t value;
  const pinrail_status_t status = host->param(host, "max_reg_size", &value);
  if (status != PINRAIL_SUCCESS) return status;
  component_t* component = malloc(sizeof(*component));
  if (component == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  component->host = host;
  component->max_reg_size = (size_t)value.u;
  *context_out = component;
  return PINRAIL_SUCCESS;
}

static void close_it(void* context) { free(context); }

static const pinrail_param_t params[] = {
    {.size = sizeof(pinrail_param_t),
     .name = "max_reg_size",
     .fallback = "2M",
     .help = "Bytes of the pieces into which pinrail_chunks_begin() cuts a large range.",
     .type = PINRAIL_TYPE_SIZE,
     .scope = PINRAIL_SCOPE_READONLY,
     .level = 4,
     .minimum = 4096,
     .maximum = INT64_C(1) << 40}};

/* find, evict, progress, check, export_range, register_remote, ft_event and query are left out. */
static const pinrail_mpool_ops_t ops = {.size = sizeof(ops),
                                        .create = create,
                                        .destroy = destroy,
                                        .referenced = referenced,
                                        .register_mem = register_mem,
                                        .deregister = deregister,
                                        .invalidate_range_hook = invalidate_range_hook,
                                        .stats = stats,
                                        .max_reg_size = max_reg_size,
                                        .counters = counters,
                                        .kinds = PINRAIL_KIND_HOST};

PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {.size = sizeof(pinrail_component_t),
                                               .abi = PINRAIL_MPOOL_ABI,
                                               .priority = 1,
                                               .framework = "mpool",
                                               .name = "@NAME@",
                                               .version = "1.0.0",
                                               .help = "Counts calls; keeps nothing.",
                                               .params = params,
                                               .param_count = 1,
                                               .open = open_it,
                                               .close = close_it,
                                               .ops = &ops};
