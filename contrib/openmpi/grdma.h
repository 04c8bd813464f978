// SPDX-License-Identifier: BSD-3-Clause
// grdma.h - Open MPI's rcache "grdma" on Pinrail's pools: what the parts of the adapter share.
//
// Owns     the list of modules. One module is one pool, whose registrar is the BTL that asked for the module.
// Threads  init_module() and the end of a module: Open MPI calls them while it starts and ends, one at a time.
//          All else: any thread, any number at a time; modules_mutex guards the list.
// Hook     what ends in _hook; it takes no lock of ours and looks at nothing but whether events are reported.
//
// The registration that Open MPI knows is the tail of the registration that Pinrail knows. A BTL is called only inside
// Open MPI's own calls into this module, into another one that is out of resources, or inside opal_progress(): a
// program that asked for no threads gets none.
#ifndef PINRAIL_CONTRIB_OPENMPI_GRDMA_H
#define PINRAIL_CONTRIB_OPENMPI_GRDMA_H

#include <pinrail/pinrail.h>
#include <pthread.h>
#include <stdatomic.h>

#include "contrib/openmpi/open_mpi.h"

typedef struct grdma_module {
  mca_rcache_base_module_t super;         // first: it is what Open MPI holds
  mca_rcache_base_resources_t resources;  // the BTL's functions; the name is a copy of ours
  pinrail_mpool_t* pool;
  atomic_ulong found, not_found;  // calls of rcache_find
  atomic_bool has_allocated;      // memory of MPI_Alloc_mem()
  struct grdma_module* next;      // modules_mutex
} grdma_module_t;

extern pthread_mutex_t modules_mutex;
extern grdma_module_t* modules;  // modules_mutex

// What the parameters of Open MPI say; written while they are registered.
typedef struct grdma_parameters {
  bool print_stats;
  char* monitor;
  char* size_limit;
  char* count_limit;
  char* settings;
  char* served_by;
} grdma_parameters_t;
extern grdma_parameters_t parameters;

PINRAIL_API extern mca_rcache_base_component_t mca_rcache_grdma_component;

// The descriptor by which Open MPI knows the modules: ours, or its own that was taken over.
mca_rcache_base_component_t* served_component(void);

void register_parameters(const mca_base_component_t* component);
void register_pvars(const mca_base_component_t* component);

// The functions of a module.
int register_range(mca_rcache_base_module_t* rcache, void* addr, size_t size, uint32_t flags, int32_t access_flags,
                   mca_rcache_base_registration_t** reg_out);
int deregister_range(mca_rcache_base_module_t* rcache, mca_rcache_base_registration_t* reg);
int find_range(mca_rcache_base_module_t* rcache, void* addr, size_t size, mca_rcache_base_registration_t** reg_out);
bool evict_one(mca_rcache_base_module_t* rcache);
int invalidate_range_hook(mca_rcache_base_module_t* rcache, void* base, size_t size);

// Whether modules pass events on. Open MPI tells every module of its list of each, and Pinrail needs each once. But a
// module is not yet in that list when it has been made, and no longer when it ends: so all of them pass events on.
void report_events(bool wanted);

// The table that a module lends its pool.
pinrail_registrar_t registrar_of(grdma_module_t* module);

// The flags of what this thread registers next, for the BTL.
void announce_flags(uint32_t flags);

// Figures of modules that are gone count on; print_stats prints the others.
void keep_stats(grdma_module_t* module);
void log_stats(grdma_module_t* module);

// What a descriptor has as its rcache_init: starts Pinrail at the first call. NULL, after a message, if it does not
// start.
mca_rcache_base_module_t* init_module(mca_rcache_base_resources_t* resources);

// At close: ends Pinrail. If no transport asked for a module, it reports that in a line.
int stop_pinrail(void);

#endif
