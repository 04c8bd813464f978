/* SPDX-License-Identifier: BSD-3-Clause
 * types.h - the words that every other header of Pinrail speaks: status, access, registration, handle.
 *
 * Ranges are (address, length in bytes) here and half-open inside.
 */
#ifndef PINRAIL_TYPES_H
#define PINRAIL_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PINRAIL_API __attribute__((visibility("default")))
#define PINRAIL_MUST_CHECK __attribute__((warn_unused_result))
#else
#define PINRAIL_API
#define PINRAIL_MUST_CHECK
#endif

/** What a call came to. Outputs are written on PINRAIL_SUCCESS only; an error changes nothing. */
typedef enum pinrail_status {
  PINRAIL_SUCCESS = 0,
  PINRAIL_ERR_ERROR = -1,                /**< something failed that has no better name; the log says what */
  PINRAIL_ERR_OUT_OF_RESOURCE = -2,      /**< memory, pins or device entries are used up, or it can never fit */
  PINRAIL_ERR_TEMP_OUT_OF_RESOURCE = -3, /**< as above, but what is referenced now is in the way: try later */
  PINRAIL_ERR_WOULD_BLOCK = -4,          /**< a stale entry that is still referenced is in the way */
  PINRAIL_ERR_BUSY = -5,                 /**< registrations are referenced */
  PINRAIL_ERR_BAD_PARAM = -6,            /**< an argument, a parameter's value or a handle is wrong */
  PINRAIL_ERR_NOT_FOUND = -7,
  PINRAIL_ERR_NOT_SUPPORTED = -8, /**< this component or device cannot do that, ever */
  PINRAIL_ERR_NOT_AVAILABLE = -9, /**< no such device, driver or component on this machine */
  PINRAIL_ERR_PERM = -10,
  PINRAIL_ERR_VERSION = -11 /**< a binary was built against another ABI */
} pinrail_status_t;

/** Access: rights in the low half (0 is local read), traits in the high half. The rights have Open MPI's values. */
enum {
  PINRAIL_ACCESS_LOCAL_WRITE = 0x1u,
  PINRAIL_ACCESS_REMOTE_READ = 0x2u,
  PINRAIL_ACCESS_REMOTE_WRITE = 0x4u,
  PINRAIL_ACCESS_REMOTE_ATOMIC = 0x8u,
  PINRAIL_RIGHTS_MASK = 0xfu,
  PINRAIL_TRAIT_RELAXED_ORDERING = 0x10000u,
  PINRAIL_TRAIT_ON_DEMAND = 0x20000u,
  PINRAIL_TRAITS_MASK = 0x30000u
};

/** Flags of one register call. */
enum {
  PINRAIL_FLAG_CACHE_BYPASS = 0x1u, /**< never served from the cache and never put into it */
  PINRAIL_FLAG_PERSISTENT = 0x2u,   /**< a pin of the caller's own: others may hit it, nothing evicts or displaces it,
                                         and its last deregister gives it back to the device, whatever leave_pinned is;
                                         what is cached and not persistent does not serve it */
  PINRAIL_FLAGS_MASK = 0x3u
};

/** What happens to the process, in the words of checkpoint/restart services. */
typedef enum pinrail_ft_state {
  PINRAIL_FT_CHECKPOINT = 0, /**< its image is about to be taken */
  PINRAIL_FT_CONTINUE = 1,   /**< it was taken, and the process goes on */
  PINRAIL_FT_RESTART = 2,    /**< this is the image, come back to life: what a device knew is lost */
  PINRAIL_FT_TERM = 3        /**< the process ends now that its image was taken */
} pinrail_ft_state_t;

typedef struct pinrail_mpool pinrail_mpool_t;

/**
 * One registration of one range with one device. Pinrail allocates it; the memory is type-stable until the process
 * ends. The first six fields may be read while a reference is held; a registrar writes lkey and rkey.
 */
typedef struct pinrail_registration {
  void *base;      /**< start of what the device was told, rounded to the registrar's granularity */
  size_t length;   /**< bytes */
  uint32_t rights; /**< PINRAIL_ACCESS_*: what the device granted, at least what was asked */
  uint32_t traits; /**< PINRAIL_TRAIT_*: exactly what was asked */
  uint32_t lkey;
  uint32_t rkey;
  pinrail_mpool_t *pool; /**< the pool it belongs to; a registrar sees it too */
  uint64_t state;        /**< private: references, phase and generation in one word */
  uint64_t last_use;     /**< private: epoch of the last hit or release */
  uint32_t flags;        /**< PINRAIL_FLAG_* of the register call that made it */
  uint32_t tail_size;    /**< bytes of the registrar's tail */
} pinrail_registration_t;

/** A reference to a registration. A value: copy it, pass it to another thread, deregister it once. */
typedef struct pinrail_handle {
  pinrail_registration_t *reg;
  uint64_t generation;
} pinrail_handle_t;

#ifdef __cplusplus
}
#endif

#endif
