// SPDX-License-Identifier: BSD-3-Clause
// Open MPI's rcache "gpusm" on Pinrail's pool of that name: the owner's side of GPU memory that peers on the node read.
// The transport smcuda registers the memory of each message before it sends, and sends the registration's data along.
#include <stdlib.h>

#include "contrib/openmpi/gpu_pool.h"
#include "contrib/openmpi/gpu_ticket.h"

PINRAIL_API extern mca_rcache_base_component_t mca_rcache_gpusm_component;

static char *monitor, *pinrail_settings;

side_t side = {.component = &mca_rcache_gpusm_component, .mpool = "gpusm"};

static int register_component(void) {
  const mca_base_component_t* const component = &mca_rcache_gpusm_component.rcache_version;
  (void)served_by_parameter(component);
  bool_parameter(component, "print_stats", "Print the figures at the end", &side.print_stats);
  string_parameter(
      component, "monitor",
      "Monitors of Pinrail's, as in its parameter monitor. \"cuda\" sees each free of GPU memory at once, so"
      " that peers close it; empty: a free is noticed when memory at that address is sent next",
      OPAL_INFO_LVL_5, "", &monitor);
  string_parameter(component, "settings",
                   "Any parameters of Pinrail's: name=value, separated by commas; pinrail_info lists them",
                   OPAL_INFO_LVL_6, "", &pinrail_settings);
  register_gpu_pvars(component);
  return OPAL_SUCCESS;
}

// A reference is held until the message is through, so that the block stays valid whatever is evicted meanwhile.
static pinrail_status_t export_block(pinrail_mpool_t* pool, void* addr, size_t size, pinrail_handle_t* handle_out,
                                     pinrail_gpu_block_t* block_out) {
  size_t offset;
  pinrail_handle_t handle;
  pinrail_status_t status = pinrail_mpool_register(pool, addr, size, PINRAIL_ACCESS_REMOTE_READ, 0, &handle);
  if (status != PINRAIL_SUCCESS) return status;
  status = pinrail_mpool_export(pool, addr, size, block_out, &offset);
  if (status != PINRAIL_SUCCESS) {
    (void)pinrail_mpool_deregister(handle);
    return status;
  }
  *handle_out = handle;
  return PINRAIL_SUCCESS;
}

static int register_memory(mca_rcache_base_module_t* rcache, void* addr, size_t size, uint32_t flags,
                           int32_t access_flags, mca_rcache_base_registration_t** reg_out) {
  pinrail_gpu_block_t block;
  pinrail_handle_t handle;
  *reg_out = NULL;  // what smcuda looks at
  pinrail_mpool_t* const pool = gpu_pool();
  if (pool == NULL) return OPAL_ERR_NOT_AVAILABLE;
  pinrail_status_t status = export_block(pool, addr, size, &handle, &block);
  if (status != PINRAIL_SUCCESS) return opal_result(status);
  gpu_registration_t* const made = new_registration(rcache, block.base, block.length);
  status = made != NULL ? write_ticket(&block, made->super.data.memHandle) : PINRAIL_ERR_OUT_OF_RESOURCE;
  if (status != PINRAIL_SUCCESS) {
    if (made != NULL) free_registration(made);
    (void)pinrail_mpool_deregister(handle);
    return opal_result(status);
  }
  made->handle = handle;
  made->super.base.flags = flags;
  made->super.base.access_flags = access_flags;
  *reg_out = &made->super.base;
  return OPAL_SUCCESS;
}

static int find_memory(mca_rcache_base_module_t* rcache, void* addr, size_t size,
                       mca_rcache_base_registration_t** reg_out) {
  return register_memory(rcache, addr, size, 0, 0, reg_out);
}

static void finalize_module(mca_rcache_base_module_t* rcache) {
  drop_module(rcache);
  free(rcache);
}

static mca_rcache_base_module_t* make_module(mca_rcache_base_resources_t* resources) {
  (void)resources;  // smcuda passes memory that it never filled
  mca_rcache_base_module_t* const module = calloc(1, sizeof(*module));
  if (module == NULL) return NULL;
  module->rcache_component = &mca_rcache_gpusm_component;
  module->rcache_register = register_memory;
  module->rcache_deregister = deregister_gpu;
  module->rcache_find = find_memory;
  module->rcache_finalize = finalize_module;
  add_module(module);
  return module;
}

mca_rcache_base_component_t mca_rcache_gpusm_component = {
    .rcache_version = {MCA_RCACHE_BASE_VERSION_3_0_0, .mca_component_name = "gpusm",
                       MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION),
                       .mca_open_component = open_gpu_component, .mca_register_component_params = register_component},
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = make_module};
