/* SPDX-License-Identifier: BSD-3-Clause
 * pin.h - registers memory ahead of its use, and tells what is registered.
 *
 * For programs that allocate memory as they like, send from it many times, and want to pay for the registration before
 * the first transfer. A later pinrail_mpool_register() inside a pinned range is a hit: it does not call the device.
 *
 * Threads  all functions may run together, also with all other calls on the pool. Not in a hook or a signal handler.
 */
#ifndef PINRAIL_PIN_H
#define PINRAIL_PIN_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Memory [addr, addr + length). length: bytes, not 0. */
typedef struct pinrail_range {
  void *addr;
  size_t length;
} pinrail_range_t;

enum {
  PINRAIL_PREPIN_PARTIAL = 0x1u /**< a range that fails leaves the others pinned */
};

/**
 * Registers the ranges and keeps them registered until pinrail_mpool_unpin(), whatever the pool's limits evict
 * meanwhile. Pins count: a range that is pinned n times needs n unpins. Ranges whose pages touch or overlap become one
 * registration where the device accepts that, so 1,000 buffers of one allocation cost one call of the device.
 *
 * @param ranges        of host memory: heap, stack, mapped files, huge pages, shared memory; in any order
 * @param count         ranges; 0 does nothing
 * @param access        PINRAIL_ACCESS_* | PINRAIL_TRAIT_*, of every range
 * @param flags         0: all or nothing. PINRAIL_PREPIN_PARTIAL: each range that can be pinned is
 * @param statuses_out  one status for each range, in the order of ranges; or NULL. Not written on BAD_PARAM
 * Returns SUCCESS, or the first range's error in the order of ranges: those of pinrail_mpool_register(), and
 * NOT_SUPPORTED if no monitor sees every event that can happen to a range's memory (pinrail_info --monitors), because
 * its registration could not serve later calls. NOT_AVAILABLE: in a forked child, of a pool of the parent.
 *
 * A pool with pins is BUSY for pinrail_mpool_destroy(), as with any held reference. If pinned memory is unmapped, later
 * calls do not find it; its pin still needs its unpin.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_prepin(pinrail_mpool_t *pool, const pinrail_range_t *ranges, size_t count,
                                                  uint32_t access, uint32_t flags, pinrail_status_t *statuses_out);

/**
 * Takes back one pin of each range. The last unpin of a range deregisters it, if nothing else holds its registration.
 * @param ranges  as in a pinrail_mpool_prepin() before; access likewise
 * NOT_FOUND: one of the ranges is not pinned, or is named more often than it is pinned; nothing has changed.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_unpin(pinrail_mpool_t *pool, const pinrail_range_t *ranges, size_t count,
                                                 uint32_t access);

typedef enum pinrail_pinned {
  PINRAIL_PINNED_NONE = 0,   /**< no byte of the range is registered */
  PINRAIL_PINNED_PARTLY = 1, /**< some bytes are */
  PINRAIL_PINNED_WHOLLY = 2  /**< every byte is, perhaps by several registrations */
} pinrail_pinned_t;

/**
 * Tells which part of [addr, addr + length) is registered in the pool's cache with at least that access, pinned ahead
 * or not. Takes no reference and is no use of what it finds; the device is not called. The answer may be out of date
 * when it is read, unless the caller holds what it asks for.
 * @param ranges_out  the registered parts of the range, ascending and disjoint; may be NULL if room is 0
 * @param room        entries of ranges_out; no more are written
 * @param parts_out   how many parts there are, which may exceed room; or NULL
 * NOT_SUPPORTED: the mpool cannot tell (those of GPU memory).
 */
PINRAIL_API pinrail_status_t pinrail_mpool_query(pinrail_mpool_t *pool, const void *addr, size_t length,
                                                 uint32_t access, pinrail_pinned_t *pinned_out,
                                                 pinrail_range_t *ranges_out, size_t room, size_t *parts_out);

#ifdef __cplusplus
}
#endif

#endif
