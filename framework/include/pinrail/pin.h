/* SPDX-License-Identifier: BSD-3-Clause
 * pin.h - registers memory ahead of its use, and reports which memory is registered.
 *
 * For programs that allocate memory as they like, send from it many times, and want to pay for the registration before
 * the first transfer. A later pinrail_mpool_register() inside a pinned range is a hit: it does not call the device.
 *
 * Threads  all functions may run together, also with all other calls on the pool. Not in a hook or a signal handler.
 */
#ifndef PINRAIL_PIN_H
#define PINRAIL_PIN_H

#include <pinrail/pinrail.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Memory [addr, addr + length). */
typedef struct pinrail_range {
  void *addr;    /**< first byte */
  size_t length; /**< bytes, not 0 */
} pinrail_range_t;

/** Flags of pinrail_prepin_options_t. */
enum {
  PINRAIL_PREPIN_PARTIAL = 0x1u,   /**< a range that fails leaves the others pinned */
  PINRAIL_PREPIN_HUGE_PAGES = 0x2u /**< asks the kernel for transparent huge pages (MADV_HUGEPAGE) before a chunk is
                                        populated, and counts the bytes that got huge pages */
};

/** How ranges are pinned. Zeros are the defaults; numa_node has -1. */
typedef struct pinrail_prepin_options {
  size_t size;       /**< sizeof(pinrail_prepin_options_t) */
  uint32_t flags;    /**< PINRAIL_PREPIN_* */
  uint32_t threads;  /**< threads that populate and register. 0: pinrail_mpool_prepin() uses the calling thread alone;
                          pinrail_mpool_prepin_start() one for each processor that the caller may use, at most 8.
                          pinrail_mpool_prepin() counts the calling thread */
  size_t chunk_size; /**< bytes, the longest registration, rounded down to whole pages; a device's own
                          maximum holds in any case. 0: with one thread inside the call, only that maximum; otherwise
                          also mpool_<name>_max_reg_size. A call that needs more than 16,777,216 chunks is refused with
                          BAD_PARAM */
  int32_t numa_node; /**< helper threads run on processors of this node (hwloc's index of the system), so that pages
                          without a policy of their own are populated there; -1: on any. Ignored without hwloc */
  const pinrail_register_options_t *registration; /**< as for pinrail_mpool_register_with(), for the start of the
                          first range; offset and iova of all other chunks follow from their distance to it. NULL:
                          none. A dmabuf is not populated. NOT_SUPPORTED: a persistent registration that was made
                          with other options is in the way */
} pinrail_prepin_options_t;

/** Initialises the struct above with its defaults. */
#define PINRAIL_PREPIN_OPTIONS_INIT \
  { sizeof(pinrail_prepin_options_t), 0, 0, 0, -1, NULL }

/**
 * Registers the ranges and keeps them registered until pinrail_mpool_unpin(); eviction does not touch them. Pins
 * count: a range that is pinned n times needs n unpins. Ranges whose pages touch or overlap become one registration if
 * the device accepts that, so 1,000 buffers of one allocation cost one call of the device. A range that is longer than
 * the device's maximum (or chunk_size) is cut into chunks at multiples of it, and a later request hits if it lies
 * inside one chunk.
 *
 * @param ranges        of host memory: heap, stack, mapped files, huge pages, shared memory; in any order
 * @param count         number of ranges; 0 does nothing
 * @param access        PINRAIL_ACCESS_* | PINRAIL_TRAIT_*, for every range
 * @param options       or NULL for PINRAIL_PREPIN_OPTIONS_INIT. Without PINRAIL_PREPIN_PARTIAL all ranges are pinned,
 *                      or none
 * @param statuses_out  receives one status for each range, in the order of ranges; or NULL. ERROR: the range was not
 *                      tried, or not wholly, because of another one. BAD_PARAM: its whole pages cannot be
 *                      registered. Not written if another argument is wrong
 * Returns SUCCESS, or the error of the first range, in the order of ranges, that failed. The errors are those of
 * pinrail_mpool_register(), and NOT_SUPPORTED if no monitor sees every event that can happen to a range's memory
 * (pinrail_info --monitors): its registration could not serve later calls. OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: a
 * message names the limit. NOT_AVAILABLE: in a forked child, for a pool of the parent.
 *
 * A pin holds a reference: pinrail_mpool_destroy() of a pool with pins returns BUSY. If pinned memory is unmapped,
 * later calls do not find it; the pin still needs its unpin.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_prepin(pinrail_mpool_t *pool, const pinrail_range_t *ranges, size_t count,
                                                  uint32_t access, const pinrail_prepin_options_t *options,
                                                  pinrail_status_t *statuses_out);

/** Ranges that helper threads pin, from pinrail_mpool_prepin_start() to pinrail_prepin_free(). */
typedef struct pinrail_prepin pinrail_prepin_t;

/**
 * As pinrail_mpool_prepin(), but returns at once: helper threads populate the memory in parallel and register it chunk
 * by chunk, in the order of addresses. Each chunk serves requests inside it as soon as it is registered. A
 * pinrail_mpool_register() inside a chunk that is not, registers that chunk first. Requests that the cache can answer
 * are not delayed.
 *
 * The pins come into being when the last chunk is registered: until then pinrail_mpool_unpin() returns NOT_FOUND, and
 * pinrail_prepin_cancel() gives back what is registered. A failure without PINRAIL_PREPIN_PARTIAL does the same. Memory
 * that is unmapped after its chunk was registered fails nothing, as if it were unmapped afterwards: it has its pin, and
 * later calls do not find it.
 *
 * The helper threads block all signals; they end with the work, or at pinrail_prepin_cancel(), pinrail_prepin_free()
 * and a destroy of the pool with PINRAIL_DESTROY_FORCE. Without that flag destroying the pool returns BUSY while they
 * work.
 * @param prepin_out  receives a handle; pinrail_prepin_free() ends it
 * The errors of arguments are those of pinrail_mpool_prepin(); those of ranges are reported by pinrail_prepin_wait().
 * OUT_OF_RESOURCE: no thread could be started, or the ranges exceed mpool_<name>_size_limit or
 * mpool_<name>_count_limit. NOT_SUPPORTED: the registrar has thread mode CALLER, so that helper threads may not call
 * it.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_prepin_start(pinrail_mpool_t *pool, const pinrail_range_t *ranges,
                                                        size_t count, uint32_t access,
                                                        const pinrail_prepin_options_t *options,
                                                        pinrail_prepin_t **prepin_out);

/** How far the helper threads have come. */
typedef struct pinrail_prepin_progress {
  size_t size;             /**< in: sizeof(pinrail_prepin_progress_t) */
  uint64_t total_bytes;    /**< of the chunks; overlapping ranges may count once or twice */
  uint64_t pinned_bytes;   /**< of the registered chunks */
  uint64_t huge_bytes;     /**< of pinned_bytes, on huge pages of any kind; 0 without PINRAIL_PREPIN_HUGE_PAGES and
                                 before Linux 6.7 */
  uint64_t total_chunks;   /**< registrations that are to be made */
  uint64_t pinned_chunks;  /**< registrations made; they are given back if the work fails or is cancelled */
  const char *limit;       /**< the limit that the work met; NULL: none. Valid until pinrail_prepin_free() */
  int32_t is_finished;     /**< 1: no helper thread works on it any more */
  pinrail_status_t status; /**< the result if is_finished is 1, as pinrail_prepin_wait() returns it */
} pinrail_prepin_progress_t;

/** Reports the progress. BAD_PARAM: a pointer is NULL, or progress_out->size is wrong. */
PINRAIL_API pinrail_status_t pinrail_prepin_read_progress(pinrail_prepin_t *prepin,
                                                          pinrail_prepin_progress_t *progress_out);

/**
 * Waits until the work is finished, and returns its result as pinrail_mpool_prepin() does. NOT_FOUND: it was cancelled.
 * Calls on a handle return BUSY in a registrar's function, and NOT_AVAILABLE in a forked child. Any number of threads
 * may wait.
 * @param statuses_out  as for pinrail_mpool_prepin()
 */
PINRAIL_API pinrail_status_t pinrail_prepin_wait(pinrail_prepin_t *prepin, pinrail_status_t *statuses_out);

/**
 * Registers the chunks that overlap [addr, addr + length) ahead of all others, and waits for them. Returns SUCCESS, or
 * the first error. NOT_FOUND: no range of the handle overlaps, or the work was cancelled.
 */
PINRAIL_API pinrail_status_t pinrail_prepin_wait_range(pinrail_prepin_t *prepin, void *addr, size_t length);

/**
 * Ends the work and waits for its helper threads. Gives back what was registered, unless the work had finished before:
 * then the pins stay. pinrail_prepin_wait() reports which.
 */
PINRAIL_API pinrail_status_t pinrail_prepin_cancel(pinrail_prepin_t *prepin);

/**
 * Frees the handle; cancels the work if it has not finished. Pins stay. Must not run together with other calls on the
 * handle. May be called after the pool was destroyed.
 */
PINRAIL_API pinrail_status_t pinrail_prepin_free(pinrail_prepin_t *prepin);

/**
 * Removes one pin of each range. The last unpin of a range deregisters it, if nothing else references its registration.
 * @param ranges  as in an earlier pinrail_mpool_prepin(), with the same access
 * NOT_FOUND, and nothing has changed: a range is not pinned, or is named more often than it is pinned.
 * OUT_OF_RESOURCE, and nothing has changed: there is no memory for the calling thread's record.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_unpin(pinrail_mpool_t *pool, const pinrail_range_t *ranges, size_t count,
                                                 uint32_t access);

/** Which part of a range is registered. */
typedef enum pinrail_pinned {
  PINRAIL_PINNED_NONE = 0,   /**< no byte of the range is registered */
  PINRAIL_PINNED_PARTLY = 1, /**< some bytes are */
  PINRAIL_PINNED_WHOLLY = 2  /**< every byte is, perhaps by several registrations */
} pinrail_pinned_t;

/**
 * Reports which part of [addr, addr + length) is registered in the pool's cache with at least that access, pinned or
 * not.
 * Takes no reference, does not count as a use, and does not call the device. The result may be out of date when the
 * caller reads it, unless the caller holds references to these registrations.
 * @param ranges_out  receives the registered parts of the range, ascending and disjoint; may be NULL if room is 0
 * @param room        number of entries of ranges_out
 * @param parts_out   receives the number of parts, which may exceed room; or NULL
 * NOT_SUPPORTED: the mpool has no such operation (pools of GPU memory).
 */
PINRAIL_API pinrail_status_t pinrail_mpool_query(pinrail_mpool_t *pool, const void *addr, size_t length,
                                                 uint32_t access, pinrail_pinned_t *pinned_out,
                                                 pinrail_range_t *ranges_out, size_t room, size_t *parts_out);

/**
 * Tells the device that it will soon read or write a range, so that it faults pages in ahead. A hint for memory that is
 * registered on demand (pools "odp", or PINRAIL_TRAIT_ON_DEMAND); results of transfers do not depend on it.
 * @param access  as for pinrail_mpool_register(); PINRAIL_TRAIT_ON_DEMAND is added
 * @param advice  PINRAIL_ADVICE_*
 * Registers the range on demand if no registration contains it; the registration is cached, if the pool caches.
 * BAD_PARAM: an argument is wrong. NOT_SUPPORTED: the registrar does not page on demand, or the device takes no hints.
 * NOT_AVAILABLE: in a forked child. All other errors as pinrail_mpool_register(), and ERROR: the device refused.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_advise(pinrail_mpool_t *pool, void *addr, size_t length, uint32_t access,
                                                  pinrail_advice_t advice);

#ifdef __cplusplus
}
#endif

#endif
