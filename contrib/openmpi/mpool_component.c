// SPDX-License-Identifier: BSD-3-Clause
// Open MPI's mpool component "pinrail": MPI_Alloc_mem() from memory that the transport has registered already. It
// is selected by the info key mpool_hints with "mpool=pinrail", or for all requests by mpool_base_default_hints.
//
// Where there is no such memory (no transport uses grdma, before MPI_Init has made one, a limit) it comes from malloc.
//
// Threads  any thread, any number at a time; the table of allocations has a lock.
#include <dlfcn.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/grdma_alloc.h"
#include "contrib/openmpi/open_mpi.h"
#include "opal/mca/mpool/mpool.h"

#if OPAL_MAJOR_VERSION != 4
#error "the framework mpool is known as of Open MPI 4"
#endif

enum { LEAST_ALIGNMENT = 64, PRIORITY_IF_ASKED_FOR = 90 };

// One allocation. owner NULL: it is malloc's.
typedef struct allocation {
  void *addr, *owner;
} allocation_t;

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static void* table;  // of tsearch(); table_mutex

static int compare(const void* a, const void* b) {
  const char *const x = ((const allocation_t*)a)->addr, *const y = ((const allocation_t*)b)->addr;
  return x < y ? -1 : x > y;
}

static bool note(void* addr, void* owner) {
  allocation_t* const own = malloc(sizeof(*own));
  if (own == NULL) return false;
  *own = (allocation_t){addr, owner};
  pthread_mutex_lock(&table_mutex);
  const bool noted = tsearch(own, &table, compare) != NULL;
  pthread_mutex_unlock(&table_mutex);
  if (!noted) free(own);
  return noted;
}

// Takes the note of an address out; false: it is none of ours.
static bool take_note(void* addr, allocation_t* note_out) {
  const allocation_t wanted = {addr, NULL};
  pthread_mutex_lock(&table_mutex);
  allocation_t** const found = tfind(&wanted, &table, compare);
  allocation_t* const own = found != NULL ? *found : NULL;
  if (own != NULL) (void)tdelete(&wanted, &table, compare);
  pthread_mutex_unlock(&table_mutex);
  if (own == NULL) return false;
  *note_out = *own;
  free(own);
  return true;
}

// NULL: Pinrail's grdma is not in this process.
static const grdma_alloc_table_t* registered(void) {
  const grdma_alloc_table_t* const found = dlsym(RTLD_DEFAULT, GRDMA_ALLOC_SYMBOL);
  return found != NULL && found->size >= sizeof(*found) ? found : NULL;
}

static void free_at(const allocation_t* allocation) {
  const grdma_alloc_table_t* const pools = registered();
  if (allocation->owner == NULL) {
    free(allocation->addr);
  } else if (pools != NULL) {
    pools->free(allocation->owner, allocation->addr);
  }
}

static void* allocate(mca_mpool_base_module_t* mpool, size_t size, size_t align, uint32_t flags) {
  (void)mpool;
  (void)flags;
  const grdma_alloc_table_t* const pools = registered();
  allocation_t own = {NULL, NULL};
  if (align < LEAST_ALIGNMENT) align = LEAST_ALIGNMENT;
  if (size == 0) size = 1;
  if (pools != NULL) own.addr = pools->alloc(size, align, &own.owner);
  if (own.addr == NULL && posix_memalign(&own.addr, align, size) != 0) return NULL;
  if (note(own.addr, own.owner)) return own.addr;
  free_at(&own);
  return NULL;
}

static void release(mca_mpool_base_module_t* mpool, void* addr) {
  (void)mpool;
  allocation_t own;
  if (addr != NULL && take_note(addr, &own)) free_at(&own);
}

static void* reallocate(mca_mpool_base_module_t* mpool, void* addr, size_t size) {
  allocation_t own;
  if (addr == NULL) return allocate(mpool, size, 0, 0);
  if (!take_note(addr, &own)) return NULL;
  const grdma_alloc_table_t* const pools = registered();
  void* const moved = own.owner == NULL ? realloc(addr, size)
                      : pools != NULL   ? pools->realloc(own.owner, addr, size)
                                        : NULL;
  return note(moved != NULL ? moved : addr, own.owner) ? moved : NULL;
}

static void finalize(mca_mpool_base_module_t* mpool) { (void)mpool; }

PINRAIL_API extern mca_mpool_base_component_t mca_mpool_pinrail_component;

static mca_mpool_base_module_t module = {.mpool_component = &mca_mpool_pinrail_component,
                                         .mpool_alloc = allocate,
                                         .mpool_realloc = reallocate,
                                         .mpool_free = release,
                                         .mpool_finalize = finalize,
                                         .flags = MCA_MPOOL_FLAGS_MPI_ALLOC_MEM,
                                         .mpool_allocation_unit = 4096,
                                         .mpool_name = "pinrail"};

// Whether the list of hints, with commas between them, has "mpool=pinrail".
static bool is_asked_for(const char* hints) {
  static const char wanted[] = "mpool=pinrail";
  const size_t length = sizeof(wanted) - 1;
  for (const char* at = hints; at != NULL; at = strchr(at, ',')) {
    if (*at == ',') ++at;
    if (strncmp(at, wanted, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
  }
  return false;
}

static int query(const char* hints, int* priority, mca_mpool_base_module_t** module_out) {
  const bool asked_for = is_asked_for(hints);
  if (priority != NULL) *priority = asked_for ? PRIORITY_IF_ASKED_FOR : 0;
  if (module_out != NULL) *module_out = &module;
  return OPAL_SUCCESS;
}

mca_mpool_base_component_t mca_mpool_pinrail_component = {
    .mpool_version = {MCA_MPOOL_BASE_VERSION_3_0_0, .mca_component_name = "pinrail",
                      MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION)},
    .mpool_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .mpool_query = query};
