/* SPDX-License-Identifier: BSD-3-Clause
 * figures.h - what a pool shows of itself to other processes of the same user: counters and its last events, in a file
 * in memory.
 *
 * The file is a memfd of the process, named PINRAIL_FIGURES_NAME, which the kernel ends with the process. It is found
 * and opened for reading as /proc/PID/fd/N, which the kernel permits to the same user (and to root). It is sealed: its
 * length is constant, and no other process can write it. It contains addresses and lengths, and no bytes of memory.
 *
 * The file begins with pinrail_figures_t. All numbers change while they are read, each by itself. The pool counts in
 * this file, so that it costs nothing if no process reads it.
 */
#ifndef PINRAIL_FIGURES_H
#define PINRAIL_FIGURES_H

#include <pinrail/events.h>

/** The name of the file in memory, as /proc/PID/fd shows it behind "/memfd:". */
#define PINRAIL_FIGURES_NAME "pinrail-figures"
/** The first word of the file. */
#define PINRAIL_FIGURES_MAGIC 0x7365727567696670u
/** The layout that this header describes. */
#define PINRAIL_FIGURES_VERSION 2u

/** The beginning of the file. Offsets are from its beginning, in bytes. */
typedef struct pinrail_figures {
  uint64_t magic;           /**< PINRAIL_FIGURES_MAGIC, written last */
  uint32_t version;         /**< PINRAIL_FIGURES_VERSION; another one has another layout */
  uint32_t pid;             /**< of the process, as it sees itself */
  uint64_t size;            /**< bytes of the file */
  char pool[32];            /**< name of the mpool component */
  char registrar[32];       /**< name of the registrar */
  char monitors[96];        /**< the monitors at work when the pool was made */
  uint64_t size_limit;      /**< UINT64_MAX: none */
  uint64_t count_limit;     /**< UINT64_MAX: none */
  uint32_t counts_offset;   /**< pinrail_figures_counts_t; each of its numbers is the sum over all of them */
  uint32_t counts_count;    /**< how many there are */
  uint32_t ring_count;      /**< events in the ring, a power of two; 0: none (mpool_base_events) */
  uint32_t ring_offset;     /**< the events, pinrail_figures_event_t */
  uint32_t spare;           /**< 0 */
  uint32_t bell;            /**< 0. FUTEX_WAKE here (not FUTEX_PRIVATE_FLAG) asks for the numbers that begin with
                                  `looks`. The gc thread of the process then fills them in, if it runs, on Linux 5.16
                                  or later */
  uint64_t events;          /**< how many were recorded: event number N is at N % ring_count */
  uint64_t refusals;        /**< register calls that the registrar refused */
  uint64_t memory_events;   /**< memory events that ended registrations */
  uint64_t invalidations;   /**< registrations that they ended */
  uint64_t longest_call_ns; /**< the longest call of the registrar; see registrar_ns */
  uint64_t looks;           /**< how often these were filled in; 0: never */
  uint64_t held_bytes;      /**< as in pinrail_mpool_stats_t, like all that follow */
  uint64_t held_count;      /**< see there */
  uint64_t dead_bytes;      /**< see there */
  uint64_t dead_count;      /**< see there */
} pinrail_figures_t;

/** Counts of one thread, or of all threads that have none of their own. */
typedef struct pinrail_figures_counts {
  uint64_t hits;             /**< requests that a registration answered */
  uint64_t misses[16];       /**< by pinrail_miss_reason_t */
  uint64_t registered;       /**< registrations that the device has made */
  uint64_t registered_bytes; /**< their bytes */
  uint64_t released[4];      /**< registrations given back to the device, by pinrail_reason_t */
  uint64_t released_bytes;   /**< their bytes; what is registered now is the difference */
  uint64_t registrar_ns;     /**< as in pinrail_mpool_stats_t */
  uint64_t spare[7];         /**< 0 */
} pinrail_figures_counts_t;

/** One event of the ring. It is complete if `state` is 1 + its number, before and after it was read. */
typedef struct pinrail_figures_event {
  uint64_t state;   /**< UINT64_MAX: it is being written */
  uint64_t time_ns; /**< as in pinrail_mpool_event_t, like all that follows */
  uint64_t base;    /**< see there */
  uint64_t length;  /**< see there */
  uint32_t kind;    /**< see there */
  uint32_t reason;  /**< see there */
  int32_t status;   /**< see there */
  int32_t error;    /**< see there */
  uint64_t count;   /**< see there */
  char call[8];     /**< ends with 0 */
} pinrail_figures_event_t;

#endif
