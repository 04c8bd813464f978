/* SPDX-License-Identifier: BSD-3-Clause
 * types.h - types that all other headers of Pinrail use: status, access, registration, handle.
 *
 * A range is an address and a length in bytes here, and a half-open span inside the library.
 */
#ifndef PINRAIL_TYPES_H
#define PINRAIL_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Marks a public function. */
#if defined(__GNUC__)
#define PINRAIL_API __attribute__((visibility("default")))
/** Marks a function whose result must be looked at. */
#define PINRAIL_MUST_CHECK __attribute__((warn_unused_result))
#else
#define PINRAIL_API
#define PINRAIL_MUST_CHECK
#endif

/** The result of a call. Outputs are written on PINRAIL_SUCCESS only; a call that fails changes nothing. */
typedef enum pinrail_status {
  PINRAIL_SUCCESS = 0,
  PINRAIL_ERR_ERROR = -1,           /**< a failure that no other code describes; a message says which */
  PINRAIL_ERR_OUT_OF_RESOURCE = -2, /**< memory, pins or device entries are used up, or the request exceeds a limit */
  PINRAIL_ERR_TEMP_OUT_OF_RESOURCE = -3, /**< as above, but other registrations cause it: try later */
  PINRAIL_ERR_WOULD_BLOCK = -4,          /**< a stale mapping that is still referenced occupies the address */
  PINRAIL_ERR_BUSY = -5,                 /**< registrations are referenced, or this thread is inside another call */
  PINRAIL_ERR_BAD_PARAM = -6,            /**< an argument, a parameter's value or a handle is wrong */
  PINRAIL_ERR_NOT_FOUND = -7,
  PINRAIL_ERR_NOT_SUPPORTED = -8, /**< this component or device cannot do that, ever */
  PINRAIL_ERR_NOT_AVAILABLE = -9, /**< no such device, driver or component on this machine */
  PINRAIL_ERR_PERM = -10,
  PINRAIL_ERR_VERSION = -11 /**< a component or a block has another version */
} pinrail_status_t;

/**
 * Access: the low half holds rights, of which 0 is local read; the high half holds traits. The rights have Open MPI's
 * values.
 */
enum {
  PINRAIL_ACCESS_LOCAL_WRITE = 0x1u,
  PINRAIL_ACCESS_REMOTE_READ = 0x2u,
  PINRAIL_ACCESS_REMOTE_WRITE = 0x4u,
  PINRAIL_ACCESS_REMOTE_ATOMIC = 0x8u,
  PINRAIL_RIGHTS_MASK = 0xfu,
  PINRAIL_TRAIT_RELAXED_ORDERING = 0x10000u,
  PINRAIL_TRAIT_ON_DEMAND = 0x20000u, /**< not pinned: the device has pages faulted in; see registrar.h */
  PINRAIL_TRAITS_MASK = 0x30000u
};

/** Flags of one register call. */
enum {
  PINRAIL_FLAG_CACHE_BYPASS = 0x1u, /**< the request is not served from the cache and its registration is not cached */
  PINRAIL_FLAG_PERSISTENT = 0x2u,   /**< the caller's own pin: other requests may hit it; it is never evicted or
                                         displaced; its last deregister deregisters it from the device, whatever
                                         leave_pinned is; the request hits no registration that is not persistent */
  PINRAIL_FLAGS_MASK = 0x3u
};

/** The state of a checkpoint, in the terms of checkpoint/restart services. */
typedef enum pinrail_ft_state {
  PINRAIL_FT_CHECKPOINT = 0, /**< the image of the process is about to be taken */
  PINRAIL_FT_CONTINUE = 1,   /**< the image was taken, and the process continues */
  PINRAIL_FT_RESTART = 2,    /**< the process was restored from the image: device state is lost */
  PINRAIL_FT_TERM = 3        /**< the image was taken, and the process ends */
} pinrail_ft_state_t;

/** A pool; see pinrail_mpool_create() in pinrail.h. */
typedef struct pinrail_mpool pinrail_mpool_t;

/**
 * One registration of one range with one device. Pinrail allocates it; the memory stays type-stable until the process
 * ends. A caller that holds a reference may read the first six fields; a registrar writes lkey and rkey.
 */
typedef struct pinrail_registration {
  void *base;            /**< start of the registered range, rounded to the registrar's granularity */
  size_t length;         /**< bytes */
  uint32_t rights;       /**< PINRAIL_ACCESS_*: the rights granted, at least those requested */
  uint32_t traits;       /**< PINRAIL_TRAIT_*: exactly those requested */
  uint32_t lkey;         /**< the device's key for the process's own requests; 0 if the device has no keys */
  uint32_t rkey;         /**< the device's key for peers; 0 if the device has no keys */
  pinrail_mpool_t *pool; /**< the pool of the registration; set before the registrar is called */
  uint64_t state;        /**< private: references, phase and generation in one word */
  uint32_t used;         /**< private: how often the evictor will pass it by; all bits: it was hit */
  uint32_t link;         /**< private: the pool's */
  uint32_t flags;        /**< PINRAIL_FLAG_* of the register call that created it */
  uint32_t tail_size;    /**< bytes of the registrar's tail */
} pinrail_registration_t;

/** What does not fit into pinrail_registration_t; see pinrail_registration_read_details(). */
typedef struct pinrail_registration_details {
  uint64_t lkey;       /**< of 64 bits, as libfabric's; the 32-bit key if the registrar has no other */
  uint64_t rkey;       /**< the same for peers */
  uint64_t iova;       /**< the address by which the device addresses the start of the registered range */
  uint64_t user_value; /**< from pinrail_register_options_t */
} pinrail_registration_details_t;

/**
 * A reference to a registration. It is a value: it may be copied and passed to another thread, and is deregistered
 * once.
 */
typedef struct pinrail_handle {
  pinrail_registration_t *reg; /**< may be read while the reference is held */
  uint64_t generation;         /**< tells this registration from others that use the same memory before or after it */
} pinrail_handle_t;

#ifdef __cplusplus
}
#endif

#endif
