/* SPDX-License-Identifier: BSD-3-Clause
 * alloc.h - allocates memory that is registered already.
 *
 * A pool keeps slabs of memory registered and cuts allocations out of them. A later pinrail_mpool_register() of such
 * memory, with any rights but no trait, is a hit. Slabs lie on huge pages where there are any: of hugetlbfs, otherwise
 * transparent ones, otherwise on small pages; pinrail_mpool_alloc_read_stats() says on which.
 *
 * Threads  all functions may run together; memory may be freed by another thread than the one that allocated it. Not in
 *          a hook or a signal handler.
 * Fork     In a forked child the memory of a parent's pool may be read and written, but not be freed for reuse: free
 *          succeeds and does nothing, alloc and realloc return NOT_AVAILABLE.
 */
#ifndef PINRAIL_ALLOC_H
#define PINRAIL_ALLOC_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PINRAIL_NODE_ANY = -1 /**< numa_node: of the thread that first touches the memory, as the system does it */ };

/**
 * Allocates length bytes, which are not initialised.
 * @param length     bytes, not 0. Up to 1 MiB from slabs; larger ones have a registration of their own
 * @param alignment  0 or a power of two, at most 2 MiB. Every allocation is aligned to 64 bytes
 * @param numa_node  PINRAIL_NODE_ANY, or the system's number of the NUMA node that the memory shall lie on
 * OUT_OF_RESOURCE: no memory, or it cannot be registered (a limit); TEMP_OUT_OF_RESOURCE as pinrail_mpool_register().
 * NOT_SUPPORTED: the pool cannot keep memory registered (no monitor sees what can happen to it), or its registrar's
 * granularity is more than 2 MiB. NOT_AVAILABLE: in a forked child, for a pool of the parent.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_alloc(pinrail_mpool_t *pool, size_t length, size_t alignment, int numa_node,
                                                 void **addr_out);

/**
 * Resizes an allocation. It keeps its address if the new length fits in its place and takes more than half of it, or
 * would get a place of that size again; otherwise it moves, with the lesser of both lengths copied. The alignment is
 * kept as far as 64 bytes, the node is kept.
 * @param addr  of an allocation of this pool, or NULL: allocates
 * On an error the old allocation is unchanged. BAD_PARAM: length is 0, or no allocation of this pool begins
 * at addr.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_realloc(pinrail_mpool_t *pool, void *addr, size_t length, void **addr_out);

/**
 * Frees an allocation; NULL is ignored. Registrations of it must have been deregistered. Slabs that become free stay
 * registered up to mpool_alloc_keep bytes, or until a request that lacks resources needs their room. BAD_PARAM: addr is not an allocation of this pool, or was freed before.
 *
 * pinrail_mpool_destroy() of a pool with allocations returns BUSY; with PINRAIL_DESTROY_FORCE they stay mapped, without
 * a registration.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_free(pinrail_mpool_t *pool, void *addr);

/** Statistics of what pinrail_mpool_alloc() allocated from one pool. */
typedef struct pinrail_alloc_stats {
  size_t size;                /**< in: sizeof(pinrail_alloc_stats_t) */
  uint64_t allocations;       /**< that are not freed */
  uint64_t allocated_bytes;   /**< of these, each with what its place has more than was asked for */
  uint64_t mapped_bytes;      /**< registered for allocations: used or not */
  uint64_t hugetlb_bytes;     /**< of mapped_bytes: on huge pages of hugetlbfs */
  uint64_t transparent_bytes; /**< of mapped_bytes: where the kernel may use transparent huge pages */
  uint64_t registrations;     /**< made so far */
} pinrail_alloc_stats_t;

/** Reads the statistics; visits every slab. BAD_PARAM: a pointer is NULL, or stats_out->size is wrong. */
PINRAIL_API pinrail_status_t pinrail_mpool_alloc_read_stats(pinrail_mpool_t *pool, pinrail_alloc_stats_t *stats_out);

#ifdef __cplusplus
}
#endif

#endif
