// SPDX-License-Identifier: BSD-3-Clause
// gpu_pool.h - what the adapters for Open MPI's gpusm and rgpusm share: one pool of Pinrail per process and adapter,
// its start, end and figures. Each adapter is a file of its own, with a copy of this.
//
// Owns     the pool: from the first request until the last module is finalized, when Open MPI's GPU context may still
//          be used.
// Threads  any; side_mutex guards what is not constant. Modules come and go one at a time.
#ifndef PINRAIL_OPENMPI_GPU_POOL_H
#define PINRAIL_OPENMPI_GPU_POOL_H

#include <pinrail/pinrail.h>
#include <pthread.h>

#include "contrib/openmpi/settings.h"
// and what it needs of open_mpi.h
#include "opal/opal_cuda.h"

// What differs between the two; each component defines it.
typedef struct side {
  mca_rcache_base_component_t* component;
  const char* mpool;  // "gpusm" or "rgpusm"
  bool print_stats;
  unsigned modules;       // that Open MPI has now
  bool started;           // Pinrail is
  bool has_said;          // in a message, that no pool could be made
  bool has_failed;        // for good
  pinrail_mpool_t* pool;  // NULL: none yet
} side_t;
extern side_t side;
extern pthread_mutex_t side_mutex;

// A registration as smcuda sees it, and its handle.
typedef struct gpu_registration {
  mca_opal_cuda_reg_t super;  // first
  pinrail_handle_t handle;
} gpu_registration_t;

// smcuda sends the data of a registration as it is, and takes the first 64 bytes of it back to the peer's cache.
_Static_assert(offsetof(mca_opal_cuda_reg_data_t, memHandle) == 0, "the ticket's place");
_Static_assert(sizeof(((mca_opal_cuda_reg_data_t*)0)->memHandle) == 64, "a handle of the driver has 64 bytes");
_Static_assert(offsetof(mca_opal_cuda_reg_t, base) == 0, "the transport takes the registration for its own");

// NULL: no memory. The object has one reference, and covers [base, base + length) of its owner.
gpu_registration_t* new_registration(mca_rcache_base_module_t* rcache, uint64_t base, uint64_t length);
void free_registration(gpu_registration_t* registration);

// The pool; it is made at the first request, because the program may start CUDA only after MPI. NULL, after a message,
// if there can be none.
pinrail_mpool_t* gpu_pool(void);

void add_module(mca_rcache_base_module_t* module);
// Closes the pool behind the last one.
void drop_module(mca_rcache_base_module_t* module);

int opal_result(pinrail_status_t status);

// Functions of both components and of their modules.
int open_gpu_component(void);
int deregister_gpu(mca_rcache_base_module_t* rcache, mca_rcache_base_registration_t* reg);

// Performance variables of MPI_T for the pool's figures.
void register_gpu_pvars(const mca_base_component_t* component);

#endif
