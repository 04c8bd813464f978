/* SPDX-License-Identifier: BSD-3-Clause
 * stats.h - performance variables of a pool, readable at any time on any thread, and listable by name.
 */
#ifndef PINRAIL_STATS_H
#define PINRAIL_STATS_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Figures of one pool. Bytes and counts of the budget (those marked *) are of all pools of its cache_name. */
typedef struct pinrail_mpool_stats {
  size_t size; /**< in: sizeof(pinrail_mpool_stats_t) */
  uint64_t hits;
  uint64_t misses;           /**< register calls that no indexed registration could serve */
  uint64_t evictions;        /**< idle registrations given back to make room */
  uint64_t invalidations;    /**< registrations that a memory event killed */
  uint64_t races;            /**< registrations that an event overtook while the registrar ran (R13) */
  uint64_t retries;          /**< registrar calls repeated after OUT_OF_RESOURCE */
  uint64_t uncovered;        /**< registrations not kept, for no monitor sees all that can happen to their memory */
  uint64_t indexed;          /**< registrations in the index now */
  uint64_t dead_bytes;       /**< left the index, not yet given back */
  uint64_t registered_bytes; /**< * what the device was told, now: pending and dead included */
  uint64_t registered_count; /**< * */
  uint64_t peak_registered_bytes; /**< * */
  uint64_t pinned_bytes;          /**< * unique pages of registered_bytes, times their size */
  uint64_t size_limit;            /**< * bytes; UINT64_MAX: none */
  uint64_t count_limit;           /**< * UINT64_MAX: none */
  uint32_t leave_pinned;          /**< 1 if idle registrations are kept */
  uint32_t reserved;
} pinrail_mpool_stats_t;

typedef struct pinrail_stat_info {
  const char *name; /**< as the field above */
  const char *unit; /**< "calls", "registrations", "bytes" */
  const char *help;
  size_t offset; /**< of a uint64_t in pinrail_mpool_stats_t */
} pinrail_stat_info_t;

/** The listable 64-bit figures; index 0 and up, NULL past the end. */
PINRAIL_API const pinrail_stat_info_t *pinrail_stat_at(size_t index);

/** Reads them all. Takes a sweep over the pool's registrations for pinned_bytes: not for a hot loop. */
PINRAIL_API pinrail_status_t pinrail_mpool_read_stats(pinrail_mpool_t *pool, pinrail_mpool_stats_t *stats_out);

#ifdef __cplusplus
}
#endif

#endif
