/* SPDX-License-Identifier: BSD-3-Clause
 * listing.h - what this library is and what it found: the facts of its build, its components, usable or not, and the
 *             machine.
 */
#ifndef PINRAIL_LISTING_H
#define PINRAIL_LISTING_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A component that was found. Strings live until pinrail_finalize(). */
typedef struct pinrail_component_info {
  size_t size; /**< in: sizeof(pinrail_component_info_t) */
  const char *framework;
  const char *name;
  const char *version; /**< "" if it was not loaded */
  const char *help;    /**< one line; "" if it was not loaded */
  const char *path;    /**< its file, or "built in" */
  const char *reason;  /**< why it is not open; "" if it is */
  int32_t priority;
  int32_t selected;        /**< 1 if the framework's selection list allows it */
  pinrail_status_t status; /**< of its checks and its open() */
} pinrail_component_info_t;

/** How many components were found (between init and finalize). */
PINRAIL_API size_t pinrail_component_count(void);

/** The index-th one: by framework (mpool, rcache, registrar, monitor), then by name. NOT_FOUND past the end. */
PINRAIL_API pinrail_status_t pinrail_component_at(size_t index, pinrail_component_info_t *info_out);

/** A kind of host memory that programs register. Strings live until the next pinrail_init(). */
typedef struct pinrail_memory_kind {
  size_t size;         /**< in: sizeof(pinrail_memory_kind_t) */
  const char *name;    /**< "anonymous", "shared file", ... */
  int32_t is_kept;     /**< 1: registrations of it may be kept after their release */
  const char *why_not; /**< "" if it is kept: else which events no monitor sees */
} pinrail_memory_kind_t;

/** What is kept with the monitors that were found to work, index 0 and up, between init and finalize. NOT_FOUND past the
 *  end, or before init. */
PINRAIL_API pinrail_status_t pinrail_memory_kind_at(size_t index, pinrail_memory_kind_t *kind_out);

/** The monitors of host memory that see something, with commas between their names; "" if there is none. The string
 *  lives until the next pinrail_init(). */
PINRAIL_API const char *pinrail_monitors_at_work(void);

/** A fact of how the library was built. */
typedef struct pinrail_build_fact {
  const char *name; /**< "sysconfdir" */
  const char *value;
} pinrail_build_fact_t;

/** The facts, before init too; index 0 and up, NULL past the end. */
PINRAIL_API const pinrail_build_fact_t *pinrail_build_at(size_t index);

/** The machine that the process runs on, as far as its memory goes. */
typedef struct pinrail_machine {
  size_t size;                /**< in: sizeof(pinrail_machine_t) */
  const char *source;         /**< who was asked: "hwloc" or "system"; lives until the process ends */
  uint64_t page_size;         /**< bytes of a small page */
  uint64_t memory;            /**< bytes */
  uint64_t hugepage_sizes[8]; /**< bytes, of the sizes that the kernel knows; rising, 0 behind the last */
  uint32_t numa_nodes;        /**< 1 or more; 1 if the source is the system */
} pinrail_machine_t;

/** Asks anew each time (some milliseconds), before init too. BAD_PARAM: machine_out is NULL or without its size. */
PINRAIL_API pinrail_status_t pinrail_machine_read(pinrail_machine_t *machine_out);

#ifdef __cplusplus
}
#endif

#endif
