// SPDX-License-Identifier: BSD-3-Clause
// Open MPI's rcache "rgpusm" on Pinrail's pool of that name: the peer's side, which opens GPU memory of other processes
// of the node and keeps it open. The transport smcuda has a module for each peer; all of them use one pool.
#include <stdio.h>
#include <stdlib.h>

#include "contrib/openmpi/gpu_pool.h"
#include "contrib/openmpi/gpu_ticket.h"

PINRAIL_API extern mca_rcache_base_component_t mca_rcache_rgpusm_component;

typedef struct rgpusm_module {
  mca_rcache_base_module_t super;  // first: it is what Open MPI holds
  gpu_table_t table;               // of the peer; super.lock
} rgpusm_module_t;

// Open MPI's own parameters and more, as texts: Pinrail checks them. gpu_pool.c reads them by name.
static struct {
  char *rcache_name, *size_limit, *count_limit, *leave_pinned, *empty_cache, *verbose, *settings;
} parameters;

side_t side = {.component = &mca_rcache_rgpusm_component, .mpool = "rgpusm"};

static int register_component(void) {
  const mca_base_component_t* const component = &mca_rcache_rgpusm_component.rcache_version;
  (void)served_by_parameter(component);
  bool_parameter(component, "print_stats", "Print the figures of the cache at the end", &side.print_stats);
  string_parameter(component, "rcache_name", "The index of the cache; empty: Pinrail's own choice", OPAL_INFO_LVL_9, "",
                   &parameters.rcache_name);
  string_parameter(component, "rcache_size_limit",
                   "Most bytes of peers' memory open, with suffix K, M or G; 0: no limit. The least recently used is"
                   " closed for other memory. Empty: as Pinrail's parameter mpool_rgpusm_size_limit says",
                   OPAL_INFO_LVL_9, "", &parameters.size_limit);
  string_parameter(component, "count_limit", "Most allocations of peers open; likewise", OPAL_INFO_LVL_9, "",
                   &parameters.count_limit);
  string_parameter(component, "leave_pinned",
                   "1: memory stays open after a transfer. 0: each transfer opens and closes it. Empty: as Pinrail's"
                   " parameter mpool_rgpusm_leave_pinned says (1)",
                   OPAL_INFO_LVL_9, "", &parameters.leave_pinned);
  string_parameter(component, "empty_cache", "1: when a limit is reached, all that is not in use is closed",
                   OPAL_INFO_LVL_5, "", &parameters.empty_cache);
  string_parameter(component, "verbose", "As Pinrail's parameter mpool_rgpusm_verbose", OPAL_INFO_LVL_9, "",
                   &parameters.verbose);
  string_parameter(component, "settings",
                   "Any parameters of Pinrail's: name=value, separated by commas; pinrail_info lists them",
                   OPAL_INFO_LVL_6, "", &parameters.settings);
  register_gpu_pvars(component);
  return OPAL_SUCCESS;
}

// BAD_PARAM: the peer's gpusm was Open MPI's own. It sends the driver's handle alone, which does not show that its
// memory was freed.
static void print_unread(pinrail_status_t status) {
  static bool printed;  // once is enough; a second line does no harm
  if (printed) return;
  printed = true;
  char happened[160] = "a peer sent GPU memory that was not exported by Pinrail's gpusm.";
  const char* advice = "give all processes of the job the same mca_base_component_path.";
  if (status != PINRAIL_ERR_BAD_PARAM) {
    snprintf(happened, sizeof(happened), "GPU memory of a peer on this node cannot be found (%s).",
             pinrail_status_name(status));
    advice = status == PINRAIL_ERR_OUT_OF_RESOURCE
                 ? "raise the limit of open files (ulimit -n), or free memory."
                 : "let all processes of the node see each other's /proc/PID/fd: one user, one PID namespace.";
  }
  print_help(happened, "its messages are copied through host memory.", advice);
}

static pinrail_status_t read_block(rgpusm_module_t* module, const void* ticket, pinrail_gpu_block_t* block_out) {
  OPAL_THREAD_LOCK(&module->super.lock);
  const pinrail_status_t status = read_ticket(&module->table, ticket, block_out);
  // With the peer's table in reach a ticket that is not found is of memory that the peer has freed.
  const bool is_unread = status == PINRAIL_ERR_BAD_PARAM || (status != PINRAIL_SUCCESS && module->table.mapped == NULL);
  OPAL_THREAD_UNLOCK(&module->super.lock);
  if (is_unread) print_unread(status);
  return status;
}

// smcuda finds the byte that it wants by its distance from base, and adds that to alloc_base.
static mca_rcache_base_registration_t* known_to_open_mpi(rgpusm_module_t* module, const pinrail_gpu_block_t* block,
                                                         pinrail_handle_t handle) {
  gpu_registration_t* const made = new_registration(&module->super, block->base, block->length);
  if (made == NULL) return NULL;
  made->handle = handle;
  made->super.base.alloc_base = (unsigned char*)handle.reg->base;
  return &made->super.base;
}

// *reg_inout: in: a registration whose data has the peer's ticket. smcuda passes the peer's rank as flags.
static int register_remote(mca_rcache_base_module_t* rcache, void* addr, size_t size, uint32_t flags,
                           int32_t access_flags, mca_rcache_base_registration_t** reg_inout) {
  (void)addr, (void)size, (void)flags, (void)access_flags;
  rgpusm_module_t* const module = (rgpusm_module_t*)rcache;
  const mca_opal_cuda_reg_t* const asked = (const mca_opal_cuda_reg_t*)*reg_inout;
  pinrail_gpu_block_t block;
  pinrail_handle_t handle;
  pinrail_mpool_t* const pool = gpu_pool();
  if (pool == NULL) return OPAL_ERR_NOT_AVAILABLE;
  pinrail_status_t status = read_block(module, asked->data.memHandle, &block);
  if (status != PINRAIL_SUCCESS) return opal_result(status);
  status = pinrail_mpool_register_remote(pool, &block, 0, block.length, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle);
  if (status != PINRAIL_SUCCESS) return opal_result(status);
  mca_rcache_base_registration_t* const made = known_to_open_mpi(module, &block, handle);
  if (made == NULL) {
    (void)pinrail_mpool_deregister(handle);
    return OPAL_ERR_OUT_OF_RESOURCE;
  }
  *reg_inout = made;
  return OPAL_SUCCESS;
}

// An address alone does not say which peer's memory is meant.
static int find_remote(mca_rcache_base_module_t* rcache, void* addr, size_t size,
                       mca_rcache_base_registration_t** reg_out) {
  (void)rcache, (void)addr, (void)size;
  *reg_out = NULL;
  return OPAL_SUCCESS;
}

static bool evict_one(mca_rcache_base_module_t* rcache) {
  (void)rcache;
  pinrail_mpool_t* const pool = gpu_pool();
  return pool != NULL && pinrail_mpool_evict(pool) == PINRAIL_SUCCESS;
}

static void finalize_module(mca_rcache_base_module_t* rcache) {
  close_table(&((rgpusm_module_t*)rcache)->table);
  drop_module(rcache);
  free(rcache);
}

static mca_rcache_base_module_t* make_module(mca_rcache_base_resources_t* resources) {
  (void)resources;  // NULL
  rgpusm_module_t* const module = calloc(1, sizeof(*module));
  if (module == NULL) return NULL;
  module->super.rcache_component = &mca_rcache_rgpusm_component;
  module->super.rcache_register = register_remote;
  module->super.rcache_deregister = deregister_gpu;
  module->super.rcache_find = find_remote;
  module->super.rcache_evict = evict_one;
  module->super.rcache_finalize = finalize_module;
  add_module(&module->super);
  return &module->super;
}

mca_rcache_base_component_t mca_rcache_rgpusm_component = {
    .rcache_version = {MCA_RCACHE_BASE_VERSION_3_0_0, .mca_component_name = "rgpusm",
                       MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION),
                       .mca_open_component = open_gpu_component, .mca_register_component_params = register_component},
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = make_module};
