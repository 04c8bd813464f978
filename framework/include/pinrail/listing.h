/* SPDX-License-Identifier: BSD-3-Clause
 * listing.h - lists how this library was built, which components it found, which kinds of memory it caches, and the
 *             machine.
 */
#ifndef PINRAIL_LISTING_H
#define PINRAIL_LISTING_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A component that was found, usable or not. Strings live until pinrail_finalize(). */
typedef struct pinrail_component_info {
  size_t size;             /**< in: sizeof(pinrail_component_info_t) */
  const char *framework;   /**< "mpool", "rcache", "registrar", "monitor" */
  const char *name;        /**< for example "grdma" */
  const char *version;     /**< "" if it was not loaded */
  const char *help;        /**< one line; "" if it was not loaded */
  const char *path;        /**< its file, or "built in" */
  const char *reason;      /**< why it is not open, or why an open monitor is not at work; "" otherwise */
  int32_t priority;        /**< highest wins; below 0: only when named */
  int32_t selected;        /**< 1 if the framework's selection list allows it */
  pinrail_status_t status; /**< result of the loader's checks and of the component's open() */
} pinrail_component_info_t;

/** Returns the number of components found; 0 before init and after finalize. */
PINRAIL_API size_t pinrail_component_count(void);

/**
 * Describes the index-th component, in the order of framework (mpool, rcache, registrar, monitor) and name. NOT_FOUND
 * past the end. BAD_PARAM: info_out is NULL or its size is not set.
 */
PINRAIL_API pinrail_status_t pinrail_component_at(size_t index, pinrail_component_info_t *info_out);

/** A kind of host memory that programs register. Strings live until the next pinrail_init(). */
typedef struct pinrail_memory_kind {
  size_t size;         /**< in: sizeof(pinrail_memory_kind_t) */
  const char *name;    /**< "anonymous", "shared file", ... */
  int32_t is_kept;     /**< 1: its registrations may stay cached after their release */
  const char *why_not; /**< "" if is_kept; else the events that no monitor sees */
} pinrail_memory_kind_t;

/**
 * Describes the index-th kind of memory, from 0, under the monitors that were found to work. NOT_FOUND past the end,
 * before init and after finalize. BAD_PARAM: kind_out is NULL or its size is not set.
 */
PINRAIL_API pinrail_status_t pinrail_memory_kind_at(size_t index, pinrail_memory_kind_t *kind_out);

/**
 * Returns the names of the monitors of host memory that work, separated by commas; "" if there is none. The string
 * lives until the next pinrail_init().
 */
PINRAIL_API const char *pinrail_monitors_at_work(void);

/** One property of the library's build. */
typedef struct pinrail_build_fact {
  const char *name;  /**< "sysconfdir" */
  const char *value; /**< "/etc" */
} pinrail_build_fact_t;

/** Returns the index-th property of the build, from 0; NULL past the end. May be called before init. */
PINRAIL_API const pinrail_build_fact_t *pinrail_build_at(size_t index);

/** The memory of the machine that the process runs on. */
typedef struct pinrail_machine {
  size_t size;                /**< in: sizeof(pinrail_machine_t) */
  const char *source;         /**< origin of the values: "hwloc" or "system"; lives until the process ends */
  uint64_t page_size;         /**< bytes of a small page */
  uint64_t memory;            /**< bytes */
  uint64_t hugepage_sizes[8]; /**< huge page sizes of the kernel in bytes, ascending; 0 after the last */
  uint32_t numa_nodes;        /**< at least 1; always 1 if source is "system" */
  uint64_t default_limit;     /**< bytes that pools of host memory may register where nothing sets a limit; UINT64_MAX:
                                   nothing bounds it. See the parameter mpool_default_limits */
  char default_limit_from[128]; /**< how it was derived, in words */
  uint64_t locked_limit;        /**< bytes that this user may lock (ulimit -l); UINT64_MAX: nothing bounds them, also
                                     with CAP_IPC_LOCK in the machine's user namespace */
} pinrail_machine_t;

/**
 * Reads the machine's memory anew in each call (some milliseconds). May be called before init. BAD_PARAM: machine_out
 * is NULL or its size is not set.
 */
PINRAIL_API pinrail_status_t pinrail_machine_read(pinrail_machine_t *machine_out);

/** Why mapped memory is not registered in a pool of the mpool "mrall". */
typedef enum pinrail_left_out_reason {
  PINRAIL_LEFT_OUT_NONE = 0,
  PINRAIL_LEFT_OUT_PROTECTED = 1, /**< the process itself may not read it */
  PINRAIL_LEFT_OUT_DEVICE = 2,    /**< of a device, or the kernel's own (vdso, vvar) */
  PINRAIL_LEFT_OUT_UNSEEN = 3,    /**< no monitor sees all that can happen to it */
  PINRAIL_LEFT_OUT_REFUSED = 4,   /**< the registrar refused it; status is its answer */
  PINRAIL_LEFT_OUT_LIMIT = 5      /**< mpool_mrall_size_limit or count_limit is reached */
} pinrail_left_out_reason_t;

/** Mapped memory that is not registered in a pool of the mpool "mrall". */
typedef struct pinrail_left_out {
  void *addr;                       /**< its start */
  size_t length;                    /**< bytes */
  pinrail_left_out_reason_t reason; /**< why */
  pinrail_status_t status;          /**< what a register call for it returns, as far as it is known */
} pinrail_left_out_t;

/**
 * Lists the mapped memory that a pool of the mpool "mrall" left out, ascending and disjoint. The list is as old as the
 * pool's last look at the mappings; pinrail_mpool_progress() brings it up to date.
 * @param entries_out  may be NULL if room is 0
 * @param room         number of entries of entries_out
 * @param count_out    receives the number of entries, which may exceed room
 * BAD_PARAM: a pointer is NULL. NOT_SUPPORTED: another mpool. NOT_AVAILABLE: in a forked child, for a pool of the parent.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_left_out(pinrail_mpool_t *pool, pinrail_left_out_t *entries_out, size_t room,
                                                    size_t *count_out);

#ifdef __cplusplus
}
#endif

#endif
