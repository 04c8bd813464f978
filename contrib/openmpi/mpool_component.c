// SPDX-License-Identifier: BSD-3-Clause
// Open MPI's mpool component "pinrail": MPI_Alloc_mem() from memory that the transport has registered already. It
// is selected by the info key mpool_hints with "mpool=pinrail", or for all requests by mpool_base_default_hints.
//
// Where there is no such memory (no transport uses grdma, before MPI_Init has made one, a limit) it comes from malloc.
//
// Threads  any thread, any number at a time; the table of allocations has a lock.
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/open_mpi.h"
#include "opal/mca/mpool/mpool.h"

#if OPAL_MAJOR_VERSION != 4
#error "the framework mpool is known as of Open MPI 4"
#endif

enum { LEAST_ALIGNMENT = 64, PRIORITY_IF_ASKED_FOR = 90 };

// One allocation. owner NULL: it is malloc's.
typedef struct allocation {
  void *addr, *owner;
  struct allocation* next;  // of its bucket; table_mutex
} allocation_t;

enum { BUCKETS = 4096 };

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static allocation_t* table[BUCKETS];  // table_mutex; needs no memory of its own, so that a note can always be put back

static allocation_t** bucket_of(const void* addr) {
  const uint64_t hash = (uint64_t)(uintptr_t)addr / LEAST_ALIGNMENT * UINT64_C(0x9e3779b97f4a7c15);
  return &table[hash >> 52];
}
_Static_assert(BUCKETS == 1 << (64 - 52), "as many as the hash's bits name");

static void put_note(allocation_t* own) {
  allocation_t** const bucket = bucket_of(own->addr);
  pthread_mutex_lock(&table_mutex);
  own->next = *bucket;
  *bucket = own;
  pthread_mutex_unlock(&table_mutex);
}

// Takes the note of an address out, for the caller to put back or to free; NULL: it is none of ours.
static allocation_t* take_note(const void* addr) {
  pthread_mutex_lock(&table_mutex);
  allocation_t** at = bucket_of(addr);
  while (*at != NULL && (*at)->addr != addr) at = &(*at)->next;
  allocation_t* const own = *at;
  if (own != NULL) *at = own->next;
  pthread_mutex_unlock(&table_mutex);
  return own;
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

// malloc(0) returns memory, too.
static size_t least_one(size_t size) { return size != 0 ? size : 1; }

// Returns false if there is no memory.
static bool allocate_at(allocation_t* own, size_t size, size_t align) {
  const grdma_alloc_table_t* const pools = registered();
  if (pools != NULL) own->addr = pools->alloc(size, align, &own->owner);
  return own->addr != NULL || posix_memalign(&own->addr, align, size) == 0;
}

static void* allocate(mca_mpool_base_module_t* mpool, size_t size, size_t align, uint32_t flags) {
  (void)mpool;
  (void)flags;
  allocation_t* const own = calloc(1, sizeof(*own));
  if (own == NULL) return NULL;
  if (!allocate_at(own, least_one(size), align < LEAST_ALIGNMENT ? LEAST_ALIGNMENT : align)) {
    free(own);
    return NULL;
  }
  put_note(own);
  return own->addr;
}

static void release(mca_mpool_base_module_t* mpool, void* addr) {
  (void)mpool;
  allocation_t* const own = addr != NULL ? take_note(addr) : NULL;
  if (own == NULL) return;
  free_at(own);
  free(own);
}

// NULL: the memory at addr is as it was.
static void* reallocate(mca_mpool_base_module_t* mpool, void* addr, size_t size) {
  if (addr == NULL) return allocate(mpool, size, 0, 0);
  allocation_t* const own = take_note(addr);
  if (own == NULL) return NULL;
  const grdma_alloc_table_t* const pools = registered();
  void* const moved = own->owner == NULL ? realloc(addr, least_one(size))
                      : pools != NULL    ? pools->realloc(own->owner, addr, least_one(size))
                                         : NULL;
  if (moved != NULL) own->addr = moved;
  put_note(own);
  return moved;
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
