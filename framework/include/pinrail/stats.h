/* SPDX-License-Identifier: BSD-3-Clause
 * stats.h - statistics of a pool, readable at any time on any thread, and listable by name.
 */
#ifndef PINRAIL_STATS_H
#define PINRAIL_STATS_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Why a register call missed. Each miss has one reason. */
typedef enum pinrail_miss_reason {
  PINRAIL_MISS_COLD = 0,  /**< the range was never cached, or so long ago that the pool has forgotten it */
  PINRAIL_MISS_SPAN,      /**< what is cached overlaps the range, but does not contain it */
  PINRAIL_MISS_RIGHTS,    /**< what is cached contains the range, but lacks rights */
  PINRAIL_MISS_EVENT,     /**< it was cached, and its memory went away: unmapped, discarded or replaced */
  PINRAIL_MISS_EVICTED,   /**< it was cached, and was evicted to make room */
  PINRAIL_MISS_EXTENT,    /**< it was cached in a longer registration, another part of which went away */
  PINRAIL_MISS_UNCOVERED, /**< it is not kept: no monitor sees every event that its memory can have */
  PINRAIL_MISS_BYPASS,    /**< the request had CACHE_BYPASS, or options of its own */
  PINRAIL_MISS_RACED,     /**< its memory had an event while the registrar ran, so that it was registered again */
  PINRAIL_MISS_FULL,      /**< it failed: what others use fills a limit of the pool */
  PINRAIL_MISS_REFUSED,   /**< it failed: the registrar refused */
  PINRAIL_MISS_NOT_KEPT,  /**< nothing is kept after its last use: leave_pinned is no, or the request is PERSISTENT */
  PINRAIL_MISS_REASONS    /**< how many reasons there are */
} pinrail_miss_reason_t;

/** The reason in a few words: "cold", "longer or shifted"; "?" for another number. The result is constant. */
static inline const char *pinrail_miss_reason_text(uint32_t reason) {
  static const char *const texts[] = {"cold",        "longer or shifted",
                                      "rights",      "memory went away",
                                      "evicted",     "another part went away",
                                      "not covered", "bypass",
                                      "raced",       "limit",
                                      "refused",     "not kept"};
  return reason < PINRAIL_MISS_REASONS ? texts[reason] : "?";
}

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
  uint64_t dead_bytes;       /**< removed from the index, unreferenced, and not yet deregistered */
  uint64_t registered_bytes; /**< * bytes registered with the device now, pending and dead included */
  uint64_t registered_count; /**< * registrations of registered_bytes */
  uint64_t peak_registered_bytes; /**< * maximum of registered_bytes */
  uint64_t pinned_bytes;          /**< * bytes of the distinct pages of registered_bytes */
  uint64_t size_limit;            /**< * bytes; UINT64_MAX: no limit */
  uint64_t count_limit;           /**< * registrations; UINT64_MAX: no limit */
  uint32_t leave_pinned;          /**< 1 if idle registrations are kept */
  uint32_t evicts_idle_only;      /**< * 1: size_limit is a default, and what is in use may exceed it */
  uint64_t extent_hits;           /**< requests answered by what a registration covers beyond its first request; those
                                       that are repeated soon are not counted again */
  uint64_t extent_lost;           /**< registrations that a memory event invalidated before what they covered beyond
                                       their first requests had answered enough requests to pay for its pages */

  /* Misses by reason, in the order of pinrail_miss_reason_t. Of a pool grdma their sum is `misses`; other pools name no
     reasons. */
  uint64_t misses_cold;      /**< PINRAIL_MISS_COLD */
  uint64_t misses_span;      /**< PINRAIL_MISS_SPAN */
  uint64_t misses_rights;    /**< PINRAIL_MISS_RIGHTS */
  uint64_t misses_event;     /**< PINRAIL_MISS_EVENT */
  uint64_t misses_evicted;   /**< PINRAIL_MISS_EVICTED */
  uint64_t misses_extent;    /**< PINRAIL_MISS_EXTENT */
  uint64_t misses_uncovered; /**< PINRAIL_MISS_UNCOVERED */
  uint64_t misses_bypass;    /**< PINRAIL_MISS_BYPASS */
  uint64_t misses_raced;     /**< PINRAIL_MISS_RACED */
  uint64_t misses_full;      /**< PINRAIL_MISS_FULL */
  uint64_t misses_refused;   /**< PINRAIL_MISS_REFUSED */
  uint64_t misses_not_kept;  /**< PINRAIL_MISS_NOT_KEPT */

  uint64_t held_bytes;   /**< bytes of this pool's registrations that are referenced, or being made */
  uint64_t held_count;   /**< registrations of held_bytes */
  uint64_t dead_count;   /**< registrations of dead_bytes */
  uint64_t registrar_ns; /**< nanoseconds inside the registrar's functions, of all threads together. By a clock that
                              ticks every few milliseconds, so that the sum of many calls is right, and that of few is
                              not; exact, at the price of some dozens of nanoseconds a call, with
                              mpool_<name>_print_stats */
} pinrail_mpool_stats_t;

/** The misses of one reason; 0 for another number. */
static inline uint64_t pinrail_stats_misses(const pinrail_mpool_stats_t *stats, uint32_t reason) {
  return reason < PINRAIL_MISS_REASONS ? (&stats->misses_cold)[reason] : 0;
}

/** One statistic, for programs that list them. */
typedef struct pinrail_stat_info {
  const char *name; /**< the field's name above */
  const char *unit; /**< "calls", "registrations", "bytes" */
  const char *help; /**< one sentence */
  size_t offset;    /**< of a uint64_t field in pinrail_mpool_stats_t. If the library is newer than the program, it may
                       lie beyond the end of the program's struct: then the program cannot read it */
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
