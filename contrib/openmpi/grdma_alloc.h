// SPDX-License-Identifier: BSD-3-Clause
// grdma_alloc.h - memory that a transport has registered already: what the mpool component asks of the rcache
// component.
//
// Owns     nothing; the pools own what they allocate.
// Threads  any thread, any number at a time.
#ifndef PINRAIL_OPENMPI_GRDMA_ALLOC_H
#define PINRAIL_OPENMPI_GRDMA_ALLOC_H

#include <pinrail/types.h>
#include <stddef.h>

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
