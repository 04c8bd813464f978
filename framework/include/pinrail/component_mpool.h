/* SPDX-License-Identifier: BSD-3-Clause
 * component_mpool.h - what the author of a pool (framework mpool) fills in, and what services a pool has.
 *
 * A pool answers register calls: it asks its index, or the registrar and then puts the registration into its index. It
 * need not keep anything. Read component.h and component_rcache.h first.
 */
#ifndef PINRAIL_COMPONENT_MPOOL_H
#define PINRAIL_COMPONENT_MPOOL_H

#include <pinrail/component_rcache.h>
#include <pinrail/events.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A registrar as pools call it: the library checks requests and answers, and serialises calls where it must. */
typedef struct pinrail_bound_registrar pinrail_bound_registrar_t;

/** What a pool is made from. Valid during create(); registrar, limits and pool until destroy(). */
typedef struct pinrail_mpool_config {
  size_t size;                          /**< sizeof(pinrail_mpool_config_t) of the library */
  pinrail_mpool_t *pool;                /**< the pool writes it into each registration */
  const char *cache_name;               /**< of pinrail_mpool_create(), or "default" */
  pinrail_bound_registrar_t *registrar; /**< the registrar that the pool calls */
  const pinrail_registrar_t *limits;    /**< the registrar's granularity, max_length, tail_size, kinds, thread_mode */
  uint32_t flags;                       /**< PINRAIL_POOL_* */
  int64_t leave_pinned;                 /**< PINRAIL_UNSET or explicit */
  int64_t size_limit;                   /**< PINRAIL_UNSET or explicit */
  int64_t count_limit;                  /**< PINRAIL_UNSET or explicit */
} pinrail_mpool_config_t;

/** Where access_and_flags of the functions below has PINRAIL_FLAG_*. */
enum { PINRAIL_ACCESS_FLAGS_SHIFT = 32 };

/**
 * The table of a pool. Functions that are not marked optional must be there; an optional one is NULL if the pool does
 * without. New functions are added at the end, and are optional. All functions but create and destroy may run on many
 * threads at once.
 */
typedef struct pinrail_mpool_ops {
  size_t size; /**< sizeof(pinrail_mpool_ops_t) */

  /** NOT_SUPPORTED: this pool cannot work with that registrar, or not with those flags. */
  pinrail_status_t (*create)(void *component, const pinrail_mpool_config_t *config, void **module_out);
  /** BUSY, with nothing changed, if something is referenced and flags lacks PINRAIL_DESTROY_FORCE. With it, referenced
   *  registrations are returned to the device and orphaned (registrations->orphan). */
  pinrail_status_t (*destroy)(void *module, pinrail_thread_t *thread, uint32_t flags);
  /** Returns how many registrations are referenced. */
  size_t (*referenced)(void *module);

  /**
   * Returns a handle of a referenced registration that contains the range. access_and_flags has the access in its low
   * half and PINRAIL_FLAG_* above, at PINRAIL_ACCESS_FLAGS_SHIFT. The library has checked both and the range; the pool
   * rounds the range out to the registrar's granularity.
   */
  pinrail_status_t (*register_mem)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                                   uint64_t access_and_flags, pinrail_handle_t *handle_out);
  /** Optional: as register_mem, but NOT_FOUND unless a registration is there already. NULL: always NOT_FOUND. */
  pinrail_status_t (*find)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                           uint64_t access_and_flags, pinrail_handle_t *handle_out);
  /** Drops a reference. The handle was of the current generation when the library looked; a drop that finds it stale
   *  returns BAD_PARAM. */
  pinrail_status_t (*deregister)(void *module, pinrail_thread_t *thread, pinrail_handle_t handle);
  /** The program reports that the range is about to go away. Hook context. */
  void (*invalidate_range_hook)(void *module, uintptr_t base, size_t length);
  /** Optional: returns one idle registration to the device; NOT_FOUND if there is none. NULL: always NOT_FOUND. */
  pinrail_status_t (*evict)(void *module, pinrail_thread_t *thread);
  /** Optional: returns to the device what hooks made DEAD. NULL: there is never anything to do. */
  pinrail_status_t (*progress)(void *module, pinrail_thread_t *thread);
  /** pinrail_mpool_read_stats(), see stats.h. */
  pinrail_status_t (*stats)(void *module, pinrail_mpool_stats_t *stats_out);

  /** In a forked child only this and counters() are called on a parent's module. Both take no lock and follow no list,
   *  because another thread may have been changing anything. */
  size_t (*max_reg_size)(void *module);
  /** Sets the figures that count what happened, and the limits; leaves those of what is registered now. */
  void (*counters)(void *module, pinrail_mpool_stats_t *stats_out);
  /** Optional, for tests: checks the pool's invariants. */
  pinrail_status_t (*check)(void *module);
  /** PINRAIL_KIND_* bits: where the caller names no registrar, one that takes at least one of them. 0: any. */
  uint32_t kinds;

  /** Optional: pinrail_mpool_export(), see pinrail.h. */
  pinrail_status_t (*export_range)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                                   pinrail_gpu_block_t *block_out, size_t *offset_out);
  /** Optional: pinrail_mpool_register_remote(), see pinrail.h. The library has checked for NULL and unknown bits, but
   *  not what the block says. */
  pinrail_status_t (*register_remote)(void *module, pinrail_thread_t *thread, const pinrail_gpu_block_t *block,
                                      size_t offset, size_t length, uint64_t access_and_flags,
                                      pinrail_handle_t *handle_out);
  /** Optional: pinrail_mpool_ft_event(), see pinrail.h. The library has checked the state. No registrar's function calls
   *  it. During RESTART the gc thread drains nothing, but hooks may come in. */
  pinrail_status_t (*ft_event)(void *module, pinrail_thread_t *thread, pinrail_ft_state_t state);

  /** Optional: pinrail_mpool_query(), see pin.h. Calls visit with the range of each registration that is cached, overlaps
   *  [base, base + length), and has at least the rights and exactly the traits of access; in any order. Leaves no
   *  reference and does not count as a use. */
  pinrail_status_t (*query)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length, uint32_t access,
                            void (*visit)(void *arg, uintptr_t base, size_t length), void *arg);

  /** Optional: pinrail_mpool_left_out(), see listing.h. Writes up to room entries. */
  pinrail_status_t (*left_out)(void *module, pinrail_left_out_t *entries_out, size_t room, size_t *count_out);

  /** Optional: pinrail_mpool_register_with(), see pinrail.h. The library has checked the options and set
   *  CACHE_BYPASS unless the flags have PERSISTENT. The registration's details lie behind the registrar's tail, rounded
   *  up to 8 bytes, and 8 bytes of the pool's own; only such pools may have details. */
  pinrail_status_t (*register_with)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                                    uint64_t access_and_flags, const pinrail_register_options_t *options,
                                    pinrail_handle_t *handle_out);
  /** PINRAIL_TRAIT_* bits that each of its registrations has, whatever was asked for. */
  uint32_t traits;
} pinrail_mpool_ops_t;

/** How soon the gc thread shall drain. */
typedef enum pinrail_gc_when {
  PINRAIL_GC_SOON = 1, /**< 100 ms after the first such call */
  PINRAIL_GC_NOW = 2
} pinrail_gc_when_t;

/** Services for pools. No lock may be held in any of them but gc_wake_hook. */
typedef struct pinrail_pool_services {
  size_t size; /**< sizeof(pinrail_pool_services_t) of the library */

  /** Calls the registrar. */
  pinrail_status_t (*registrar_register)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread,
                                         const pinrail_register_request_t *request, pinrail_registration_t *reg);
  /** Calls the registrar. Whatever it returns, the registration is forgotten. */
  pinrail_status_t (*registrar_deregister)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread,
                                           pinrail_registration_t *reg, pinrail_reason_t reason);
  /** As registrar_deregister, but without the device, which has lost what it knew: only what the library and tail_init()
   *  made of the registration is ended. reason: INVALIDATED if the memory may be in other use. */
  void (*registrar_abandon)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread, pinrail_registration_t *reg,
                            pinrail_reason_t reason);
  /** For each registrar of the pool: the process was restarted. SUCCESS if the registrar need not know. */
  pinrail_status_t (*registrar_restart)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread);
  /** Returns whether the thread is inside a registrar's function: then it must not wait for another register call. NULL:
   *  the calling thread. */
  int (*in_registrar)(const pinrail_thread_t *thread);

  /** For pools that need a second registrar's functions: the component of that name, until it is closed. Its table is
   *  called directly. NOT_FOUND: there is no component of that name; other statuses are its own. */
  pinrail_status_t (*registrar_open)(const pinrail_host_t *host, const char *name,
                                     pinrail_bound_registrar_t **registrar_out, const pinrail_registrar_t **table_out);
  /** Ends what registrar_open() made. */
  void (*registrar_close)(const pinrail_host_t *host, pinrail_bound_registrar_t *registrar);

  /** Makes an index of the component that is named, or of the best one if the name is NULL or empty. The pool ends it
   *  by rcache.ops.destroy(). */
  pinrail_status_t (*rcache_create)(const pinrail_host_t *host, const char *name, uint32_t flags,
                                    pinrail_rcache_t *rcache_out);

  /**
   * From now on the process's gc thread calls drain, with no lock held, after gc_wake_hook(); it calls again later as
   * long as drain returns 1 (something DEAD is still referenced), and at least every every_ms milliseconds if that is
   * not 0. Ends with gc_leave(), which waits for a drain under way.
   */
  pinrail_status_t (*gc_join)(const pinrail_host_t *host, int (*drain)(void *arg, pinrail_thread_t *thread), void *arg,
                              uint32_t every_ms, void **member_out);
  void (*gc_leave)(const pinrail_host_t *host, void *member); /**< see gc_join */
  /** Wakes the gc thread, if there is one. Hook context; makes a system call only if the thread sleeps, or must hurry. */
  void (*gc_wake_hook)(const pinrail_host_t *host, pinrail_gc_when_t when);
  /** Adds what the library has counted of the pool: its hits, whether the library answered them or count_hit() told of
   *  them, its misses by reason, which record_miss() told of, and the time that the registrar took. Any context. */
  void (*add_counts)(const pinrail_mpool_t *pool, pinrail_mpool_stats_t *stats_inout);
  /**
   * Narrows [*low_inout, *high_inout), whole pages which contain the range, to those around the range that a
   * registration of it may contain beyond the request: of the same mapping, which is memory without a file, and which
   * the monitors cover; present, and mapped by this process alone, so that pinning them adds no page to the process.
   * Just the range's pages if there are none, or if what is registered must be kept out of forked children.
   */
  void (*own_pages_around)(const pinrail_host_t *host, uintptr_t base, size_t length, uintptr_t *low_inout,
                           uintptr_t *high_inout);
  /** Counts a hit that the pool has answered. */
  void (*count_hit)(pinrail_mpool_t *pool, const pinrail_thread_t *thread);
  /** Counts a miss of the calling thread by its reason, and records it, for pinrail_mpool_events(). size, number, time_ns
   *  and call of the event, a MISS, need not be set. */
  void (*record_miss)(pinrail_mpool_t *pool, const pinrail_thread_t *thread, const pinrail_mpool_event_t *event);
  /** The same for an event of the pool's memory, MEMORY, which has no thread. The library records itself what registrars refuse and what is given back to the device. Hook context. */
  void (*record_hook)(pinrail_mpool_t *pool, const pinrail_mpool_event_t *event);
} pinrail_pool_services_t;

#ifdef __cplusplus
}
#endif

#endif
