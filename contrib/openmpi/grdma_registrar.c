// SPDX-License-Identifier: BSD-3-Clause
// The BTL's register_mem and deregister_mem as a registrar of Pinrail's.
#include <unistd.h>

#include "contrib/openmpi/grdma.h"

static _Thread_local uint32_t request_flags;
static _Thread_local bool was_short;

void announce_flags(uint32_t flags) {
  request_flags = flags;
  was_short = false;
}
bool device_was_short(void) { return was_short; }

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
