/* SPDX-License-Identifier: BSD-3-Clause
 * pinrail_libfabric.h - libfabric's cache of registrations hears of memory events from Pinrail: one monitor for all
 *                       caches of the process.
 *
 * Threads  pinrail_libfabric_import() and pinrail_libfabric_release(): one at a time, and not while domains are opened
 *          or closed.
 */
#ifndef PINRAIL_LIBFABRIC_H
#define PINRAIL_LIBFABRIC_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Takes the place of libfabric's own memory monitor. After pinrail_init(), before the process opens its first domain
 * (fi_domain) of a provider that caches: verbs and efa do.
 * NOT_AVAILABLE: no monitor of Pinrail's works, or one (uffd) watches the memory of pools alone; or libfabric has no
 * cache to import into. NOT_SUPPORTED: it refused, as it does when a domain is open or another monitor is there
 * already. BAD_PARAM: a second time.
 */
PINRAIL_API pinrail_status_t pinrail_libfabric_import(void);

/** Figures since the import; for tests and for the curious. */
typedef struct pinrail_libfabric_stats {
  uint64_t subscriptions; /**< ranges that libfabric asked to hear of: one for each miss of its cache */
  uint64_t lookups;       /**< how often it asked whether a cached range is still what it was */
  uint64_t notified;      /**< events that were passed on */
} pinrail_libfabric_stats_t;
PINRAIL_API void pinrail_libfabric_read_stats(pinrail_libfabric_stats_t* stats_out);

/**
 * After the last domain was closed, before pinrail_finalize(): undoes the import. libfabric keeps no host memory from
 * then on, unless it is imported again. BAD_PARAM: there was no import, or a domain that caches is open.
 */
PINRAIL_API pinrail_status_t pinrail_libfabric_release(void);

#ifdef __cplusplus
}
#endif

#endif
