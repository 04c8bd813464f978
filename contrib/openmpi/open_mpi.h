// SPDX-License-Identifier: BSD-3-Clause
// open_mpi.h - Open MPI's developer headers in their order, and what the adapter takes for granted of them. It is
// checked here, when it is compiled. What differs between 4.1 and 5.0 is here, and nowhere else.
#ifndef PINRAIL_OPENMPI_OPEN_MPI_H
#define PINRAIL_OPENMPI_OPEN_MPI_H

#include "opal_config.h"
// opal_config.h comes first
#include <pinrail/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "opal/constants.h"
#include "opal/mca/base/base.h"
#include "opal/mca/base/mca_base_pvar.h"
#include "opal/mca/rcache/base/base.h"
#include "opal/mca/rcache/rcache.h"
#if OPAL_MAJOR_VERSION >= 5
#include "opal/mca/accelerator/accelerator.h"
#endif
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params.h"
#include "opal/runtime/opal_progress.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/version.h"

_Static_assert(OPAL_MAJOR_VERSION == 4 || OPAL_MAJOR_VERSION == 5, "the rcache framework is known as of 4 and 5");
_Static_assert(RCACHE_MAJOR_VERSION == 3 && RCACHE_MINOR_VERSION == 0, "another interface of the framework rcache");

_Static_assert((int)PINRAIL_ACCESS_LOCAL_WRITE == (int)MCA_RCACHE_ACCESS_LOCAL_WRITE,
               "rights are passed on as they are");
_Static_assert((int)PINRAIL_ACCESS_REMOTE_READ == (int)MCA_RCACHE_ACCESS_REMOTE_READ, "as above");
_Static_assert((int)PINRAIL_ACCESS_REMOTE_WRITE == (int)MCA_RCACHE_ACCESS_REMOTE_WRITE, "as above");
_Static_assert((int)PINRAIL_ACCESS_REMOTE_ATOMIC == (int)MCA_RCACHE_ACCESS_REMOTE_ATOMIC, "as above");
_Static_assert((int)PINRAIL_RIGHTS_MASK == (int)MCA_RCACHE_ACCESS_ANY, "as above");
_Static_assert((int)PINRAIL_FLAG_CACHE_BYPASS == (int)MCA_RCACHE_FLAGS_CACHE_BYPASS, "flags too");
_Static_assert((int)PINRAIL_FLAG_PERSISTENT == (int)MCA_RCACHE_FLAGS_PERSIST, "flags too");

_Static_assert(offsetof(mca_rcache_base_registration_t, super) == 0, "BTLs take the registration for their own");
_Static_assert(sizeof(((mca_rcache_base_registration_t*)0)->ref_count) == 4, "a count of 32 bits");

// 4.1: ofi, openib, uct.  5.0: no openib. One bit, two names.
#if OPAL_MAJOR_VERSION >= 5
#define GRDMA_USERS "ofi, uct, ugni, knem"
enum { GPU_MEMORY = MCA_RCACHE_FLAGS_ACCELERATOR_MEM };
_Static_assert(offsetof(mca_rcache_base_registration_t, access_flags) >
                   offsetof(mca_rcache_base_registration_t, gpu_bufID),
               "5.0 put the buffer's id before the access");
#else
#define GRDMA_USERS "ofi, openib, uct"
enum { GPU_MEMORY = MCA_RCACHE_FLAGS_CUDA_GPU_MEM };
#endif
_Static_assert(GPU_MEMORY == 0x8, "GPU memory is never cached here, so it has to be known");

// The transport ofi of 5.0.7 and 5.0.8 registers GPU memory without that flag.
static inline bool is_unflagged_gpu_memory(const void* addr) {
#if OPAL_MAJOR_VERSION >= 5
  int device;
  uint64_t flags;
  return opal_accelerator.check_addr != NULL && opal_accelerator.check_addr(addr, &device, &flags) > 0;
#else
  (void)addr;
  return false;
#endif
}

// The component grdma that Open MPI has; NULL: none.
static inline mca_rcache_base_component_t* find_grdma(void) {
  mca_base_component_list_item_t* item;
  OPAL_LIST_FOREACH(item, &opal_rcache_base_framework.framework_components, mca_base_component_list_item_t) {
    if (strcmp(item->cli_component->mca_component_name, "grdma") == 0) {
      return (mca_rcache_base_component_t*)item->cli_component;
    }
  }
  return NULL;
}

// From 5.0.2 on Open MPI has functions for what components did themselves before.
#define HAS_MODULE_INIT \
  (OPAL_MAJOR_VERSION > 5 || (OPAL_MAJOR_VERSION == 5 && (OPAL_MINOR_VERSION > 0 || OPAL_RELEASE_VERSION >= 2)))
static inline void construct_module(mca_rcache_base_module_t* module) {
#if HAS_MODULE_INIT
  mca_rcache_base_module_init(module);
#else
  OBJ_CONSTRUCT(&module->lock, opal_mutex_t);
#endif
}
static inline void destruct_module(mca_rcache_base_module_t* module) {
#if HAS_MODULE_INIT
  mca_rcache_base_module_fini(module);
#else
  OBJ_DESTRUCT(&module->lock);
#endif
}

// tell.c: messages for people, three lines each, once on every node; and whether this was built for this Open MPI.

// Sentences, without a newline. A job has many processes: the first of each node speaks for all.
void print_help(const char* happened, const char* follows, const char* to_do);

// The same, where the job may end for this reason: every process prints, because the first one that ends can end the
// others before they have printed.
void print_fatal_help(const char* happened, const char* follows, const char* to_do);

// One line, likewise; and one by the first process of the job alone.
void print_line(const char* line);
void print_job_line(const char* line);

// False, after a message, if this was built for another minor version of Open MPI. WHAT: the component, for instance
// "rcache grdma". FOLLOWS: who serves the process then.
bool check_version(const char* what, const char* follows);

// Memory that a transport has registered already: what the mpool component asks of the rcache component. The pools own
// what they allocate. Any thread, any number at a time.

// Version 1. The mpool component finds it by name, because Open MPI loads both components by themselves.
typedef struct grdma_alloc_table {
  size_t size;
  // Allocates from the newest module's pool. NULL: there is no module, or its pool has no memory. owner_out names the
  // module for the calls below.
  void* (*alloc)(size_t bytes, size_t alignment, void** owner_out);
  // The same address or another; NULL: no memory, and addr is unchanged. Of a module that is gone: NULL.
  void* (*realloc)(void* owner, void* addr, size_t bytes);
  // Frees nothing if the module is gone: Open MPI ended its transport, and the memory stays mapped.
  void (*free)(void* owner, void* addr);
} grdma_alloc_table_t;

#define GRDMA_ALLOC_SYMBOL "pinrail_openmpi_alloc"
PINRAIL_API extern const grdma_alloc_table_t pinrail_openmpi_alloc;

#endif
