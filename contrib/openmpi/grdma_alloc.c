// SPDX-License-Identifier: BSD-3-Clause
// Memory from the modules' pools. modules_mutex is held during each call, so that no module ends meanwhile.
#include "contrib/openmpi/grdma_alloc.h"

#include <pinrail/alloc.h>

#include "contrib/openmpi/grdma.h"

static grdma_module_t* module_if_there_locked(const void* owner) {
  grdma_module_t* each = modules;
  while (each != NULL && each != owner) each = each->next;
  return each;
}

// What is registered here serves all requests, also those that need strong ordering; and it is host memory, whatever
// the thread asked for before.
static void announce_own(void) { announce_flags(MCA_RCACHE_FLAGS_SO_MEM); }

static void* alloc_registered(size_t bytes, size_t alignment, void** owner_out) {
  void* addr = NULL;
  announce_own();
  pthread_mutex_lock(&modules_mutex);
  if (modules != NULL &&
      pinrail_mpool_alloc(modules->pool, bytes, alignment, PINRAIL_NODE_ANY, &addr) == PINRAIL_SUCCESS) {
    *owner_out = modules;
    atomic_store_explicit(&modules->has_allocated, true, memory_order_relaxed);  // before the program has the memory
  }
  pthread_mutex_unlock(&modules_mutex);
  return addr;
}

static void* realloc_registered(void* owner, void* addr, size_t bytes) {
  void* moved = NULL;
  announce_own();
  pthread_mutex_lock(&modules_mutex);
  grdma_module_t* const module = module_if_there_locked(owner);
  if (module != NULL && pinrail_mpool_realloc(module->pool, addr, bytes, &moved) != PINRAIL_SUCCESS) moved = NULL;
  pthread_mutex_unlock(&modules_mutex);
  return moved;
}

static void free_registered(void* owner, void* addr) {
  pthread_mutex_lock(&modules_mutex);
  grdma_module_t* const module = module_if_there_locked(owner);
  if (module != NULL) (void)pinrail_mpool_free(module->pool, addr);
  pthread_mutex_unlock(&modules_mutex);
}

const grdma_alloc_table_t pinrail_openmpi_alloc = {sizeof(pinrail_openmpi_alloc), alloc_registered, realloc_registered,
                                                   free_registered};
