/* SPDX-License-Identifier: BSD-3-Clause
 * registrar.h - how memory becomes known to a device: the table that an embedder lends, or a component fills in.
 */
#ifndef PINRAIL_REGISTRAR_H
#define PINRAIL_REGISTRAR_H

#include <pinrail/gpu.h>
#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What kind of memory a request names. Bits, so that a registrar can list what it takes.
 * REMOTE: a peer's GPU memory; addr and length are the whole allocation as its owner knows it, handle is its block, and
 * the registrar sets reg->base to where it can be reached here. GPU: an allocation of this process's, whole; nothing is
 * mapped. Of both kinds the tail begins with the block (pinrail_gpu_block_t): for GPU the registrar fills in kind, base,
 * length, buffer_id, device, driver and what begins with fd_, and the pool the rest.
 */
enum { PINRAIL_KIND_HOST = 0x1u, PINRAIL_KIND_DMABUF = 0x2u, PINRAIL_KIND_REMOTE = 0x4u, PINRAIL_KIND_GPU = 0x8u };

/** From where the table may be called. */
typedef enum pinrail_thread_mode {
  PINRAIL_THREAD_CONCURRENT = 0, /**< any thread, any number at a time */
  PINRAIL_THREAD_SERIALIZED = 1, /**< any thread, one at a time; Pinrail serialises, outside all of its other locks */
  PINRAIL_THREAD_CALLER = 2      /**< one at a time, and only inside calls into the pool that it was lent to */
} pinrail_thread_mode_t;

/** Why a registration is given back. */
typedef enum pinrail_reason {
  PINRAIL_REASON_RELEASED = 0,    /**< its last reference was dropped and the cache does not keep it */
  PINRAIL_REASON_EVICTED = 1,     /**< it was idle and its place is needed */
  PINRAIL_REASON_INVALIDATED = 2, /**< the memory went away: the address may be somebody else's now, touch no page */
  PINRAIL_REASON_FINALIZED = 3    /**< the pool is going */
} pinrail_reason_t;

typedef struct pinrail_register_request {
  size_t size;          /**< sizeof(pinrail_register_request_t) */
  uint32_t kind;        /**< one PINRAIL_KIND_* bit; another than the table's kinds: NOT_SUPPORTED */
  uint32_t rights;      /**< PINRAIL_ACCESS_*; an unknown bit: BAD_PARAM */
  uint32_t traits;      /**< PINRAIL_TRAIT_*; an unknown bit: BAD_PARAM */
  int fd;               /**< DMABUF: its file descriptor */
  void *addr;           /**< multiple of granularity */
  size_t length;        /**< bytes, multiple of granularity, not 0 */
  uint64_t fd_offset;   /**< DMABUF: offset of addr in it */
  const void *handle;   /**< REMOTE: the exporter's handle */
  size_t handle_length; /**< bytes */
} pinrail_register_request_t;

/** A registrar. Functions that are not marked optional must be there. */
typedef struct pinrail_registrar {
  size_t size;      /**< sizeof(pinrail_registrar_t) as the author compiled it */
  const char *name; /**< for messages */
  void *context;    /**< first argument of every function below */
  pinrail_thread_mode_t thread_mode;
  uint32_t kinds;     /**< PINRAIL_KIND_* bits that register_mem takes */
  size_t granularity; /**< power of two; requests are rounded out to it; 1: byte exact */
  size_t max_length;  /**< largest range of one registration in bytes; 0: no maximum */
  size_t tail_size;   /**< bytes of its own behind each registration, zeroed, aligned to 64 */

  /**
   * Makes the range known to the device and fills reg->lkey and reg->rkey if it has such.
   * base, length, rights and traits of reg are set already; reg->rights may be raised, never lowered.
   * Returns PINRAIL_SUCCESS; OUT_OF_RESOURCE when evicting others could help (then Pinrail evicts and asks again);
   * WOULD_BLOCK when a stale mapping is in the way; any other error ends the request.
   */
  pinrail_status_t (*register_mem)(void *context, const pinrail_register_request_t *request,
                                   pinrail_registration_t *reg);

  /** Gives the registration back. Whatever it returns, Pinrail forgets the registration; an error is reported. */
  pinrail_status_t (*deregister_mem)(void *context, pinrail_registration_t *reg, pinrail_reason_t reason);

  /** Optional: called once when a tail is made and once before its memory serves another registration. After a restart
   *  (pinrail_mpool_ft_event) tail_fini is called without deregister_mem: it must not reach for the device. */
  pinrail_status_t (*tail_init)(void *context, void *tail);
  void (*tail_fini)(void *context, void *tail);

  /**
   * Optional: moves bytes between the range as *the device* sees it and ordinary memory, for checks and examples.
   * offset is in bytes from reg->base; slow (one round trip), safe on any thread.
   */
  pinrail_status_t (*device_read)(void *context, const pinrail_registration_t *reg, size_t offset, void *into,
                                  size_t length);
  pinrail_status_t (*device_write)(void *context, const pinrail_registration_t *reg, size_t offset, const void *from,
                                   size_t length);

  /**
   * For registrars of the kind GPU: which allocation of GPU memory holds the address, and its id now. NOT_FOUND: that is
   * no GPU memory. Asked on each hit, on any thread.
   */
  pinrail_status_t (*identify)(void *context, const void *addr, pinrail_gpu_range_t *range_out);

  /**
   * Nonzero: nothing pins host memory for a device here, so it needs no protection against fork (the parameter
   * registrar_fork_marks).
   */
  uint32_t pins_nothing;

  /**
   * Optional, for registrars of the kind GPU: a dmabuf of that range of GPU memory, whose file descriptor is the caller's
   * to close, and where in it the range begins. NOT_SUPPORTED: the driver makes none of it.
   */
  pinrail_status_t (*export_dmabuf)(void *context, const void *addr, size_t length, int *fd_out,
                                    uint64_t *fd_offset_out);

  /**
   * Optional: the process was restarted from a checkpoint (pinrail_mpool_ft_event), so it may be another one by now: pid,
   * start and machine. Called before anything else in the new life. Afterwards what was given out in the name of the old
   * one is good no more; of the registrations of the past life only tails are still ended, by tail_fini. An error is that
   * of the whole RESTART, which may be tried again: then it is called once more.
   */
  pinrail_status_t (*restart)(void *context);

  /**
   * Optional, together: order between the streams of two processes, see pinrail_mpool_record() and pinrail_mpool_wait().
   * stream is the driver's (a CUstream). The registration is referenced meanwhile; any thread, several at a time.
   */
  pinrail_status_t (*record)(void *context, pinrail_registration_t *reg, void *stream);
  pinrail_status_t (*wait)(void *context, pinrail_registration_t *reg, void *stream);
} pinrail_registrar_t;

/** The registrar's tail of a registration, or NULL if the registrar declared none. */
PINRAIL_API void *pinrail_registration_tail(const pinrail_registration_t *reg);

/** The registration that a tail belongs to. */
PINRAIL_API pinrail_registration_t *pinrail_registration_of_tail(const void *tail);

/** A handle of a registration that the caller holds a reference to (this takes no reference). */
PINRAIL_API pinrail_handle_t pinrail_registration_handle(pinrail_registration_t *reg);

#ifdef __cplusplus
}
#endif

#endif
