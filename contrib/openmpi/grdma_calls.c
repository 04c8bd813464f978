// SPDX-License-Identifier: BSD-3-Clause
// What BTLs call.
#include <unistd.h>

#include "contrib/openmpi/grdma.h"

// The BTL's register_mem and deregister_mem as a registrar of Pinrail's.

static _Thread_local uint32_t request_flags;
static _Thread_local bool was_short;

void announce_flags(uint32_t flags) {
  request_flags = flags;
  was_short = false;
}
static bool device_was_short(void) { return was_short; }

static mca_rcache_base_registration_t* known_to_open_mpi(const pinrail_registration_t* reg) {
  return pinrail_registration_tail(reg);
}

// Before the BTL is asked, for it reads them; openib computes sizes from base and bound, which is the last byte.
static void fill(grdma_module_t* module, const pinrail_register_request_t* request,
                 mca_rcache_base_registration_t* reg) {
  reg->rcache = &module->super;
  reg->base = request->addr;
  reg->bound = reg->base + request->length - 1;
  reg->alloc_base = reg->base;
  reg->flags = request_flags;
  reg->access_flags = (int32_t)request->rights;
  reg->ref_count = 1;
}

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  grdma_module_t* const module = context;
  mca_rcache_base_registration_t* const theirs = known_to_open_mpi(reg);
  fill(module, request, theirs);
  const int result = module->resources.register_mem(module->resources.reg_data, request->addr, request->length, theirs);
  if (result == OPAL_SUCCESS) return PINRAIL_SUCCESS;
  was_short = result == OPAL_ERR_OUT_OF_RESOURCE || result == OPAL_ERR_TEMP_OUT_OF_RESOURCE;
  if (was_short) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return result == OPAL_ERR_NOT_SUPPORTED ? PINRAIL_ERR_NOT_SUPPORTED : PINRAIL_ERR_ERROR;
}

static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)reason;  // BTLs give back a key; none of them touches pages
  grdma_module_t* const module = context;
  mca_rcache_base_registration_t* const theirs = known_to_open_mpi(reg);
  theirs->ref_count = 0;
  const int result = module->resources.deregister_mem(module->resources.reg_data, theirs);
  return result == OPAL_SUCCESS ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

// There is no tail_fini: these objects own nothing, and where a tool has MPI_T open longer than MPI, Open MPI takes its
// classes apart before it closes its components.
static pinrail_status_t tail_init(void* context, void* tail) {
  (void)context;
  OBJ_CONSTRUCT(tail, mca_rcache_base_registration_t);
  return PINRAIL_SUCCESS;
}

pinrail_registrar_t registrar_of(grdma_module_t* module) {
  return (pinrail_registrar_t){.size = sizeof(pinrail_registrar_t),
                               .name = module->resources.cache_name,
                               .context = module,
                               .thread_mode = PINRAIL_THREAD_CALLER,
                               .kinds = PINRAIL_KIND_HOST,
                               .granularity = (size_t)sysconf(_SC_PAGESIZE),
                               .tail_size = module->resources.sizeof_reg,
                               .register_mem = register_mem,
                               .deregister_mem = deregister_mem,
                               .tail_init = tail_init};
}

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
