// SPDX-License-Identifier: BSD-3-Clause
// What BTLs call.
#include "contrib/openmpi/grdma.h"

static grdma_module_t* module_of(mca_rcache_base_module_t* rcache) { return (grdma_module_t*)rcache; }

static int result_of(pinrail_status_t status) {
  switch (status) {
    case PINRAIL_SUCCESS: return OPAL_SUCCESS;
    case PINRAIL_ERR_OUT_OF_RESOURCE: return OPAL_ERR_OUT_OF_RESOURCE;
    case PINRAIL_ERR_TEMP_OUT_OF_RESOURCE: return OPAL_ERR_TEMP_OUT_OF_RESOURCE;
    case PINRAIL_ERR_BAD_PARAM: return OPAL_ERR_BAD_PARAM;
    case PINRAIL_ERR_NOT_FOUND: return OPAL_ERR_NOT_FOUND;
    case PINRAIL_ERR_NOT_SUPPORTED: return OPAL_ERR_NOT_SUPPORTED;
    default: return OPAL_ERROR;
  }
}

// Open MPI says who needs strong ordering, Pinrail who needs none: requests of the two kinds never share.
static uint32_t access_of(uint32_t flags, int32_t access_flags) {
  const uint32_t rights = (uint32_t)access_flags & PINRAIL_RIGHTS_MASK;
  return (flags & MCA_RCACHE_FLAGS_SO_MEM) != 0 ? rights : rights | PINRAIL_TRAIT_RELAXED_ORDERING;
}

// GPU memory is not cached: events of it come from the CUDA driver, and not through Open MPI's hooks.
static uint32_t flags_of(const void* addr, uint32_t flags) {
  const bool is_gpu = (flags & GPU_MEMORY) != 0 || is_unflagged_gpu_memory(addr);
  return (flags & PINRAIL_FLAGS_MASK) | (is_gpu ? PINRAIL_FLAG_CACHE_BYPASS : 0u);
}

// Some are registered with a length of 0, a zero-byte window for one.
static size_t least_one(size_t size) { return size != 0 ? size : 1; }

// What keeps one device from registering (locked memory, most of all) may be held by another one's idle registrations.
// Pinrail does not look there, for a registrar that wants its own callers only is not asked on behalf of others.
static bool evict_elsewhere(const grdma_module_t* asker) {
  bool evicted = false;
  pthread_mutex_lock(&modules_mutex);
  for (grdma_module_t* each = modules; each != NULL && !evicted; each = each->next) {
    evicted = each != asker && pinrail_mpool_evict(each->pool) == PINRAIL_SUCCESS;
  }
  pthread_mutex_unlock(&modules_mutex);
  return evicted;
}

// Memory of MPI_Alloc_mem() is registered with strong ordering, which serves who would bear with relaxed ordering, too.
// Without this look, a request that allows relaxed ordering would register it once more.
static bool is_allocated(grdma_module_t* module, void* addr, size_t size, uint32_t access, uint32_t flags,
                         pinrail_handle_t* handle_out) {
  if (!atomic_load_explicit(&module->has_allocated, memory_order_relaxed) || flags != 0) return false;
  return pinrail_mpool_find(module->pool, addr, size, access & PINRAIL_RIGHTS_MASK, handle_out) == PINRAIL_SUCCESS;
}

int register_range(mca_rcache_base_module_t* rcache, void* addr, size_t size, uint32_t flags, int32_t access_flags,
                   mca_rcache_base_registration_t** reg_out) {
  grdma_module_t* const module = module_of(rcache);
  const uint32_t access = access_of(flags, access_flags), own_flags = flags_of(addr, flags);
  pinrail_handle_t handle;
  pinrail_status_t status;
  *reg_out = NULL;
  if (is_allocated(module, addr, least_one(size), access, own_flags, &handle)) {
    *reg_out = pinrail_registration_tail(handle.reg);
    return OPAL_SUCCESS;
  }
  do {
    announce_flags(flags);
    status = pinrail_mpool_register(module->pool, addr, least_one(size), access, own_flags, &handle);
  } while (status != PINRAIL_SUCCESS && device_was_short() && evict_elsewhere(module));
  if (status == PINRAIL_SUCCESS) *reg_out = pinrail_registration_tail(handle.reg);
  return result_of(status);
}

int deregister_range(mca_rcache_base_module_t* rcache, mca_rcache_base_registration_t* reg) {
  (void)rcache;
  return result_of(pinrail_mpool_deregister(pinrail_registration_handle(pinrail_registration_of_tail(reg))));
}

// Nothing found is a success with nothing, as in Open MPI's own.
int find_range(mca_rcache_base_module_t* rcache, void* addr, size_t size, mca_rcache_base_registration_t** reg_out) {
  grdma_module_t* const module = module_of(rcache);
  pinrail_handle_t handle;
  pinrail_status_t status =
      pinrail_mpool_find(module->pool, addr, least_one(size), PINRAIL_TRAIT_RELAXED_ORDERING, &handle);
  if (status == PINRAIL_ERR_NOT_FOUND) status = pinrail_mpool_find(module->pool, addr, least_one(size), 0, &handle);
  *reg_out = status == PINRAIL_SUCCESS ? pinrail_registration_tail(handle.reg) : NULL;
  atomic_fetch_add(status == PINRAIL_SUCCESS ? &module->found : &module->not_found, 1);
  return status == PINRAIL_ERR_NOT_FOUND ? OPAL_SUCCESS : result_of(status);
}

bool evict_one(mca_rcache_base_module_t* rcache) {
  grdma_module_t* const module = module_of(rcache);
  return pinrail_mpool_evict(module->pool) == PINRAIL_SUCCESS || evict_elsewhere(module);
}
