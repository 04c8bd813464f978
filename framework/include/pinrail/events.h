/* SPDX-License-Identifier: BSD-3-Clause
 * events.h - what a pool did lately: its misses, the memory events that ended registrations, refusals of its registrar,
 * and what it gave back. Each pool records it all the time, in memory of a fixed size (parameter mpool_base_events).
 */
#ifndef PINRAIL_EVENTS_H
#define PINRAIL_EVENTS_H

#include <pinrail/registrar.h>
#include <pinrail/stats.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What happened. */
typedef enum pinrail_event_kind {
  PINRAIL_EVENT_MISS = 1,    /**< a register call that no cached registration answered has ended */
  PINRAIL_EVENT_MEMORY = 2,  /**< memory went away, and with it `count` registrations that were cached */
  PINRAIL_EVENT_REFUSED = 3, /**< the registrar refused a range */
  PINRAIL_EVENT_RELEASED = 4 /**< a registration was given back to the device */
} pinrail_event_kind_t;

/** One event of a pool. Fields that a kind does not name are 0. */
typedef struct pinrail_mpool_event {
  size_t size;      /**< sizeof(pinrail_mpool_event_t) */
  uint64_t number;  /**< 0, 1, 2 and so on, of this pool */
  uint64_t time_ns; /**< CLOCK_MONOTONIC, to a few milliseconds */
  uintptr_t base;   /**< first byte of the range: what was asked for, went away, or was registered */
  size_t length;    /**< bytes of the range */
  uint32_t kind;    /**< pinrail_event_kind_t */
  uint32_t reason;  /**< MISS: pinrail_miss_reason_t. RELEASED: pinrail_reason_t, which tells an eviction */
  int32_t status;   /**< MISS, REFUSED, RELEASED: pinrail_status_t */
  int32_t error;    /**< REFUSED: errno after the registrar's call */
  uint32_t count;   /**< MEMORY: registrations that ended */
  char call[8];     /**< MEMORY: the monitor that saw it, or "program"; "": a signal handler had interrupted Pinrail */
} pinrail_mpool_event_t;

/**
 * Reads events of the pool, oldest first. Takes no lock; events that are overwritten meanwhile are left out, as are
 * those that threads are writing.
 * @param events_out  room for so many events; the first one's size is sizeof(pinrail_mpool_event_t)
 * @param next        in: the number of the first event that is wanted, 0 for the oldest that there is; out: the number
 *                    to go on with
 * @param count_out   receives how many were read; fewer than room: there are no more
 * BAD_PARAM: a pointer is NULL, or the size is wrong. NOT_AVAILABLE: mpool_base_events is 0.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_events(pinrail_mpool_t *pool, pinrail_mpool_event_t *events_out, size_t room,
                                                  uint64_t *next, size_t *count_out);

#ifdef __cplusplus
}
#endif

#endif
