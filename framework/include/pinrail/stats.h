/* SPDX-License-Identifier: BSD-3-Clause
 * stats.h - statistics of a pool, readable at any time on any thread, and listable by name.
 */
#ifndef PINRAIL_STATS_H
#define PINRAIL_STATS_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Statistics of one pool. Fields marked * are of the budget, which all pools of its mpool component and cache_name
 * share.
 */
typedef struct pinrail_mpool_stats {
  size_t size;               /**< in: sizeof(pinrail_mpool_stats_t) */
  uint64_t hits;             /**< register and find calls that an indexed registration answered */
  uint64_t misses;           /**< register calls that no indexed registration matched */
  uint64_t evictions;        /**< idle registrations deregistered to make room */
  uint64_t invalidations;    /**< registrations that a memory event invalidated */
  uint64_t races;            /**< registrations whose memory had an event while the registrar ran (R13) */
  uint64_t retries;          /**< registrar calls repeated after OUT_OF_RESOURCE */
  uint64_t uncovered;        /**< registrations not cached: no monitor sees every event that their memory can have */
  uint64_t indexed;          /**< registrations in the index now */
  uint64_t dead_bytes;       /**< removed from the index and not yet deregistered */
  uint64_t registered_bytes; /**< * bytes registered with the device now, pending and dead included */
  uint64_t registered_count; /**< * registrations of registered_bytes */
  uint64_t peak_registered_bytes; /**< * maximum of registered_bytes */
  uint64_t pinned_bytes;          /**< * bytes of the distinct pages of registered_bytes */
  uint64_t size_limit;            /**< * bytes; UINT64_MAX: no limit */
  uint64_t count_limit;           /**< * registrations; UINT64_MAX: no limit */
  uint32_t leave_pinned;          /**< 1 if idle registrations are kept */
  uint32_t evicts_idle_only;      /**< * 1: size_limit is a default, and what is in use may exceed it */
  uint64_t extent_hits;           /**< requests that the part of a registration answered which nobody had asked for;
                                       those that are repeated soon are not counted again */
  uint64_t extent_lost;           /**< registrations that a memory event invalidated before that part had answered enough
                                       requests to pay for its pages */
} pinrail_mpool_stats_t;

/** One statistic, for programs that list them. */
typedef struct pinrail_stat_info {
  const char *name; /**< the field's name above */
  const char *unit; /**< "calls", "registrations", "bytes" */
  const char *help; /**< one sentence */
  size_t offset;    /**< of a uint64_t field in pinrail_mpool_stats_t */
} pinrail_stat_info_t;

/** Describes the index-th 64-bit statistic, from 0; NULL past the end. The result lives until the process ends. */
PINRAIL_API const pinrail_stat_info_t *pinrail_stat_at(size_t index);

/**
 * Reads all statistics of the pool. To compute pinned_bytes it visits every registration of the pool: do not call it
 * in a hot loop. BAD_PARAM: a pointer is NULL, or stats_out->size is wrong.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_read_stats(pinrail_mpool_t *pool, pinrail_mpool_stats_t *stats_out);

#ifdef __cplusplus
}
#endif

#endif
