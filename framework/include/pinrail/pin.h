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
 * Registers the ranges and keeps them registered until pinrail_mpool_unpin(); eviction does not touch them. Pins
 * count: a range that is pinned n times needs n unpins. Ranges whose pages touch or overlap become one registration if
 * the device accepts that, so 1,000 buffers of one allocation cost one call of the device.
 *
 * @param ranges        of host memory: heap, stack, mapped files, huge pages, shared memory; in any order
 * @param count         number of ranges; 0 does nothing
 * @param access        PINRAIL_ACCESS_* | PINRAIL_TRAIT_*, for every range
 * @param flags         0: pins all ranges or none. PINRAIL_PREPIN_PARTIAL: pins each range that can be pinned
 * @param statuses_out  receives one status for each range, in the order of ranges; or NULL. Not written on BAD_PARAM
 * Returns SUCCESS, or the error of the first range, in the order of ranges, that failed. The errors are those of
 * pinrail_mpool_register(), and NOT_SUPPORTED if no monitor sees every event that can happen to a range's memory
 * (pinrail_info --monitors): its registration could not serve later calls. NOT_AVAILABLE: in a forked child, for a
 * pool of the parent.
 *
 * A pin holds a reference: pinrail_mpool_destroy() of a pool with pins returns BUSY. If pinned memory is unmapped,
 * later calls do not find it; the pin still needs its unpin.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_prepin(pinrail_mpool_t *pool, const pinrail_range_t *ranges, size_t count,
                                                  uint32_t access, uint32_t flags, pinrail_status_t *statuses_out);

/**
 * Removes one pin of each range. The last unpin of a range deregisters it, if nothing else references its registration.
 * @param ranges  as in an earlier pinrail_mpool_prepin(), with the same access
 * NOT_FOUND, and nothing has changed: a range is not pinned, or is named more often than it is pinned.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_unpin(pinrail_mpool_t *pool, const pinrail_range_t *ranges, size_t count,
                                                 uint32_t access);

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

#ifdef __cplusplus
}
#endif

#endif
