/* SPDX-License-Identifier: BSD-3-Clause
 * registrar.h - how memory is registered with a device: a table of functions, from an embedder or a component.
 */
#ifndef PINRAIL_REGISTRAR_H
#define PINRAIL_REGISTRAR_H

#include <pinrail/gpu.h>
#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The kind of memory of a request. The values are bits, so that a registrar can list the kinds that it accepts.
 * REMOTE: a peer's GPU memory. addr and length are the whole allocation in its owner's address space, and handle is
 * its block; the registrar sets reg->base to the address of the mapping in this process. GPU: a whole allocation of
 * this process; nothing is mapped. For both kinds the tail begins with the block (pinrail_gpu_block_t). For GPU the
 * registrar fills in kind, base, length, buffer_id, device, driver and the fields fd_*, and the pool fills in the
 * rest.
 */
enum { PINRAIL_KIND_HOST = 0x1u, PINRAIL_KIND_DMABUF = 0x2u, PINRAIL_KIND_REMOTE = 0x4u, PINRAIL_KIND_GPU = 0x8u };

/** On which threads the table's functions may be called. */
typedef enum pinrail_thread_mode {
  PINRAIL_THREAD_CONCURRENT = 0, /**< any thread, any number at a time */
  PINRAIL_THREAD_SERIALIZED =
      1, /**< any thread, one at a time; Pinrail serialises the calls with a lock that only they take, and that all
            pools share whose tables have the same register_mem and context */
  PINRAIL_THREAD_CALLER = 2 /**< one at a time, and only inside calls on the registrar's own pool */
} pinrail_thread_mode_t;

/**
 * Why a registration is deregistered, as it was known when that was decided. Another thread may unmap the memory while
 * the call waits for its turn or runs. So a registrar whose deregister_mem accesses pages must bear that they are gone,
 * or other memory, for every reason; INVALIDATED says that they are.
 */
typedef enum pinrail_reason {
  PINRAIL_REASON_RELEASED = 0, /**< its last reference was dropped and the cache does not keep it */
  PINRAIL_REASON_EVICTED = 1,  /**< it was idle and was evicted to make room */
  PINRAIL_REASON_INVALIDATED =
      2, /**< the memory was unmapped: the address may belong to other memory, so access no page of it */
  PINRAIL_REASON_FINALIZED = 3 /**< the pool is being destroyed */
} pinrail_reason_t;

/**
 * How a registrar serves requests with PINRAIL_TRAIT_ON_DEMAND. Such a registration pins nothing: the device has pages
 * faulted in when it needs them, so the registration follows the mappings of its range, also after munmap and mmap.
 */
enum {
  PINRAIL_ON_DEMAND_NONE = 0,     /**< not at all: NOT_SUPPORTED */
  PINRAIL_ON_DEMAND_EXPLICIT = 1, /**< a range at a time, which need not be mapped when it is registered */
  PINRAIL_ON_DEMAND_IMPLICIT = 2  /**< besides, all memory at once: a request that begins at the registrar's
                                       granularity and ends at the last multiple of it */
};

/** A hint on registrations that page on demand; see pinrail_mpool_advise(). */
typedef enum pinrail_advice {
  PINRAIL_ADVICE_PREFETCH = 0,        /**< fault pages in for reading by the device */
  PINRAIL_ADVICE_PREFETCH_WRITE = 1,  /**< fault pages in for writing by the device */
  PINRAIL_ADVICE_PREFETCH_PRESENT = 2 /**< let the device know pages that are present; fault none in */
} pinrail_advice_t;

/** What register_mem shall register. */
typedef struct pinrail_register_request {
  size_t size;          /**< sizeof(pinrail_register_request_t) */
  uint32_t kind;        /**< one PINRAIL_KIND_* bit; NOT_SUPPORTED if the table's kinds lack it */
  uint32_t rights;      /**< PINRAIL_ACCESS_*; an unknown bit: BAD_PARAM */
  uint32_t traits;      /**< PINRAIL_TRAIT_*; an unknown bit: BAD_PARAM */
  int fd;               /**< DMABUF: its file descriptor */
  void *addr;           /**< multiple of granularity */
  size_t length;        /**< bytes, multiple of granularity, not 0 */
  uint64_t fd_offset;   /**< DMABUF: offset of addr in the dmabuf */
  const void *handle;   /**< REMOTE: the exporter's handle */
  size_t handle_length; /**< bytes */
  const void *argument; /**< from pinrail_register_options_t; NULL otherwise */
  uint64_t iova;        /**< the address by which the device shall address addr; 0: addr itself. NOT_SUPPORTED if the
                             device cannot */
  pinrail_registration_details_t *details; /**< receives keys of 64 bits; NULL if the registration has no room for
                             them, see wants_details of the table. If both stay 0, the 32-bit keys are copied */
} pinrail_register_request_t;

/**
 * A registrar. Each function that is not marked optional must be set. All functions run in start-up or API context,
 * never in a hook, and with none of the pool's locks held.
 */
typedef struct pinrail_registrar {
  size_t size;                       /**< sizeof(pinrail_registrar_t) as the author compiled it */
  const char *name;                  /**< for messages */
  void *context;                     /**< first argument of every function below */
  pinrail_thread_mode_t thread_mode; /**< on which threads the functions below may be called */
  uint32_t kinds;                    /**< PINRAIL_KIND_* bits that register_mem takes */
  size_t granularity; /**< bytes, a power of two; requests are extended to its multiples; 1: byte-exact ranges */
  size_t max_length;  /**< largest range of one registration in bytes; 0: no maximum */
  size_t tail_size;   /**< bytes of private memory for each registration: at reg + 1, zeroed, aligned to 64 */

  /* Each function returns: it does not end its thread. A C++ exception that leaves it counts as ERROR. */

  /**
   * Registers the range with the device and sets reg->lkey and reg->rkey if the device has keys. base, length, rights
   * and traits of reg are set already; the function may add to reg->rights, but must not remove any. Returns
   * PINRAIL_SUCCESS; OUT_OF_RESOURCE if evicting other registrations could help (Pinrail then evicts and calls again);
   * WOULD_BLOCK if a stale mapping occupies the address; any other error ends the request.
   */
  pinrail_status_t (*register_mem)(void *context, const pinrail_register_request_t *request,
                                   pinrail_registration_t *reg);

  /**
   * Deregisters. It leaves base and length of reg alone. Pinrail forgets the registration whatever the function returns;
   * an error is reported in a message.
   */
  pinrail_status_t (*deregister_mem)(void *context, pinrail_registration_t *reg, pinrail_reason_t reason);

  /**
   * Optional: tail_init is called once when a registration gets its tail, and tail_fini once before that memory serves
   * another registration. After a restart (pinrail_mpool_ft_event) tail_fini is called without deregister_mem: it must
   * not access the device.
   */
  pinrail_status_t (*tail_init)(void *context, void *tail);
  void (*tail_fini)(void *context, void *tail); /**< see tail_init */

  /**
   * Optional: copies bytes between the range as *the device* sees it and ordinary memory, for checks and examples.
   * offset is in bytes from reg->base. Slow (one round trip).
   */
  pinrail_status_t (*device_read)(void *context, const pinrail_registration_t *reg, size_t offset, void *into,
                                  size_t length);
  pinrail_status_t (*device_write)(void *context, const pinrail_registration_t *reg, size_t offset, const void *from,
                                   size_t length); /**< see device_read */

  /**
   * For registrars of the kind GPU: finds the allocation of GPU memory that holds the address, and its present id.
   * NOT_FOUND: the address is not GPU memory. Called on each hit, on any thread.
   */
  pinrail_status_t (*identify)(void *context, const void *addr, pinrail_gpu_range_t *range_out);

  /**
   * Nonzero: registrations do not pin host memory for a device, so that the memory needs no protection against fork
   * (see the parameter registrar_fork_marks).
   */
  uint32_t pins_nothing;

  /**
   * Optional, for registrars of the kind GPU: exports the range as a dmabuf. fd_out receives a file descriptor, which
   * the caller closes, and fd_offset_out the range's offset in the dmabuf. NOT_SUPPORTED: the driver cannot export the
   * range. Any thread, any number at a time, whatever the thread mode.
   */
  pinrail_status_t (*export_dmabuf)(void *context, const void *addr, size_t length, int *fd_out,
                                    uint64_t *fd_offset_out);

  /**
   * Optional: the process was restarted from a checkpoint (pinrail_mpool_ft_event); its pid, start time and machine
   * may have changed. Pinrail calls this function before any other function after the restart. What was exported under
   * the old identity is invalid afterwards; for registrations of before the restart only tail_fini is still called. An
   * error becomes the result of RESTART, which may be repeated; the function is then called again.
   */
  pinrail_status_t (*restart)(void *context);

  /**
   * Optional, both or neither: order work on streams of two processes; see pinrail_mpool_record() and
   * pinrail_mpool_wait(). stream is the driver's (a CUstream). The registration is referenced during the call; any
   * thread, several at a time.
   */
  pinrail_status_t (*record)(void *context, pinrail_registration_t *reg, void *stream);
  pinrail_status_t (*wait)(void *context, pinrail_registration_t *reg, void *stream); /**< see record */

  /**
   * Nonzero: keys have 64 bits, so each registration has room for details. Otherwise only those have that are
   * registered with pinrail_register_options_t.
   */
  uint32_t wants_details;

  uint64_t on_demand;          /**< PINRAIL_ON_DEMAND_* */
  size_t on_demand_max_length; /**< largest range of one registration on demand in bytes, instead of max_length; not
                                    for all memory at once; 0: no maximum */
  /** Optional: gives the device a hint on a registration on demand. The range lies within it. */
  pinrail_status_t (*advise)(void *context, const pinrail_registration_t *reg, size_t offset, size_t length,
                             pinrail_advice_t advice);
} pinrail_registrar_t;

/** Returns the registrar's tail of a registration; NULL if reg is NULL or the registrar declared no tail. */
PINRAIL_API void *pinrail_registration_tail(const pinrail_registration_t *reg);

/** Returns the registration that a tail belongs to; NULL if tail is NULL. */
PINRAIL_API pinrail_registration_t *pinrail_registration_of_tail(const void *tail);

/**
 * Reads the 64-bit keys, the device's address and the user's value. The caller must hold a reference. A registration
 * without details has its 32-bit keys, its base and 0. BAD_PARAM: a pointer is NULL.
 */
PINRAIL_API pinrail_status_t pinrail_registration_read_details(const pinrail_registration_t *reg,
                                                               pinrail_registration_details_t *details_out);

/** Returns a handle of a registration. The caller must hold a reference; the call takes none. */
PINRAIL_API pinrail_handle_t pinrail_registration_handle(pinrail_registration_t *reg);

#ifdef __cplusplus
}
#endif

#endif
