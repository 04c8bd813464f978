/* SPDX-License-Identifier: BSD-3-Clause
 * pinrail.h - start here: init, pools, register, deregister.
 *
 * Threads  Each function may be called on any thread at any time, with two exceptions: pinrail_init() and
 *          pinrail_finalize() exclude all other calls; create and destroy of a pool exclude other calls on that pool.
 * Fork     In a forked child the parent's pools are inert: register, find, evict, progress and ft_event return
 *          NOT_AVAILABLE; deregister, destroy and finalize succeed and reach no device. After pinrail_init() the child
 *          can create working pools of its own. A child of vfork() shares the parent's memory: it must make no call
 *          before it execs. fork() waits until no thread of Pinrail's own is inside a registrar or allocates, so that
 *          the child of a program with one thread has a whole heap. It waits at most a second: a registrar that blocks
 *          for longer may wait for what the forking thread holds. In a handler of pthread_atfork() that runs in the
 *          parent while they wait (one that was registered before pinrail_init()), what would wait for them returns
 *          BUSY: destroy, ft_event, calls on what helper threads do, and requests that a pool of mrall cannot answer;
 *          a register call that lacks room returns TEMP_OUT_OF_RESOURCE instead of waiting for it. A handler may wait
 *          for a lock of the program, whose holder, inside a call of Pinrail, may wait for such a thread: so threads of
 *          Pinrail's own go on when a fork has taken five seconds, also where the kernel copies for that long.
 * Signals  A signal handler may unmap memory, and may call pinrail_monitor_report() and
 *          pinrail_mpool_invalidate_range(), whatever it interrupted. It must make no other call: if the interrupted
 *          thread was inside a call on a pool, the handler's call returns BUSY and changes nothing; inside a call on
 *          parameters, monitors' subscriptions or the message function it may wait for that thread's lock for ever; if
 *          it was inside a hit, the handler's call may spoil what the thread remembers of its requests. A handler must
 *          not leave by longjmp. Threads of Pinrail's own block asynchronous signals. Those that a thread causes itself, such
 *          as SIGSEGV, reach the program's handlers there as well.
 * Unwind   Calls are no cancellation points, and neither are the functions of the embedder that they run: such a
 *          function must return. If it throws, the call returns ERROR; if its thread ends inside it, by pthread_exit(),
 *          what the call held stays held. A thread with asynchronous cancellation must not call Pinrail
 *          and must not unmap memory: POSIX allows it neither, and a monitor that patches functions (patcher) runs
 *          Pinrail's code in unmapping calls.
 * Exit     A process may exit at any time, on any thread, while other threads are inside calls.
 * Errors   Errors are return values. A call that fails changes nothing. Errors that a program or an administrator must
 *          correct are reported once, in three lines on stderr or to pinrail_set_message_function(): a wrong argument
 *          (BAD_PARAM), a wrong value of a parameter, an unusable component, a limit that is too low. Results that a
 *          program must expect are returned without a message: NOT_FOUND, BUSY (except from destroy), WOULD_BLOCK,
 *          NOT_SUPPORTED, NOT_AVAILABLE in a forked child. A lack of room is reported at most once a second, and never
 *          with mpool_base_events=0. pinrail_mpool_invalidate_range() never
 *          reports, because it may run in a signal handler.
 */
#ifndef PINRAIL_PINRAIL_H
#define PINRAIL_PINRAIL_H

#include <pinrail/gpu.h>
#include <pinrail/params.h>
#include <pinrail/registrar.h>
#include <pinrail/stats.h>
#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The full name of one parameter and its value, as a user would type them. */
typedef struct pinrail_setting {
  const char *name;  /**< full name, for example "mpool_grdma_size_limit" */
  const char *value; /**< for example "8G" */
} pinrail_setting_t;

/** Options of pinrail_init(). */
typedef struct pinrail_init_options {
  size_t size;                       /**< sizeof(pinrail_init_options_t) */
  const pinrail_setting_t *defaults; /**< replace built-in defaults; every other source overrides them */
  size_t default_count;              /**< entries of defaults */
  const pinrail_setting_t *settings; /**< have the precedence of a command line */
  size_t setting_count;              /**< entries of settings */
  const char *settings_from; /**< the name of the settings' source in messages, for example "the command line"; NULL:
                                  "the program" */
} pinrail_init_options_t;

/** Initialises the struct above with its defaults. */
#define PINRAIL_INIT_OPTIONS_INIT \
  { sizeof(pinrail_init_options_t), NULL, 0, NULL, 0, NULL }

/**
 * Reads the parameters and loads the components. Calls nest: only the first call does the work, and each successful
 * call needs one pinrail_finalize(). options may be NULL. BAD_PARAM: a value is malformed, or a nested call gives a
 * parameter another value. If a component that was requested by name cannot be used: NOT_FOUND or the component's own
 * error. BUSY: the caller is a registrar's function that pinrail_finalize() runs, or a handler of pthread_atfork().
 */
PINRAIL_API pinrail_status_t pinrail_init(const pinrail_init_options_t *options);

/**
 * Undoes one pinrail_init(). The last call destroys the remaining pools; it returns BUSY, with a message, if one cannot
 * be destroyed, and destroys none. BUSY also if the caller is a registrar's function. OUT_OF_RESOURCE, and nothing has
 * changed: there is no memory for the calling thread's record.
 */
PINRAIL_API pinrail_status_t pinrail_finalize(void);

/** The status's name: "SUCCESS", "OUT_OF_RESOURCE", ... */
PINRAIL_API const char *pinrail_status_name(pinrail_status_t status);

/** A clause that says what the status means: "an argument, a parameter's value or a handle is wrong". */
PINRAIL_API const char *pinrail_status_text(pinrail_status_t status);

/**
 * Receives Pinrail's messages instead of stderr.
 * @param level    PINRAIL_LOG_* of component.h: 0: an error; 1: a warning, or a text of several lines; 10 and more: a
 *                 message that a parameter <...>_verbose enabled
 * @param channel  the origin: "base", "grdma", ...
 * @param text     one line, or a topic and three lines below it; no line feed at the end; valid during the call
 * The function runs on any thread, on several at once, and possibly while Pinrail holds locks; never in a memory hook.
 * It must not call Pinrail, throw, or end its thread.
 */
typedef void (*pinrail_message_t)(void *arg, int level, const char *channel, const char *text);

/**
 * Sends all further messages to the function; NULL: to stderr. May be called before pinrail_init(); the setting holds
 * until the next call. A message that another thread has already begun may still reach the previous function.
 */
PINRAIL_API void pinrail_set_message_function(pinrail_message_t function, void *arg);

/** The version of the running library, for example "1.0.0". It may differ from the version of the header. */
PINRAIL_API const char *pinrail_version(void);

/** The registrar of a pool: a component's name, or a table of the caller, which must outlive the pool. */
typedef struct pinrail_registrar_choice {
  const char *name;                 /**< component; NULL: the usable one of highest priority */
  const pinrail_registrar_t *table; /**< not NULL: use this one; name is ignored */
  void *native;                     /**< passed to the named component: a struct ibv_pd * for verbs; or NULL */
} pinrail_registrar_choice_t;

enum {
  PINRAIL_POOL_EXACT = 0x1u /**< a request hits only a registration of equal range and access */
};

/** In an option: keeps the parameter's value. */
#define PINRAIL_UNSET INT64_MIN
/** Options of a pool that override parameters. */
typedef struct pinrail_mpool_options {
  size_t size;          /**< sizeof(pinrail_mpool_options_t) */
  uint32_t flags;       /**< PINRAIL_POOL_* */
  int64_t leave_pinned; /**< -1, 0 or 1 */
  int64_t size_limit;   /**< bytes; 0: no limit */
  int64_t count_limit;  /**< registrations; 0: no limit */
} pinrail_mpool_options_t;

/** Initialises the struct above with its defaults. */
#define PINRAIL_MPOOL_OPTIONS_INIT \
  { sizeof(pinrail_mpool_options_t), 0, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_UNSET }

/**
 * Creates a pool. Pools of one mpool component and one cache_name share their budget and their order of eviction,
 * but no registrations. BUSY: the caller is a registrar's function that pinrail_finalize() runs. BAD_PARAM: an option
 * is wrong, or native is set without the name of the component that knows it.
 * @param mpool       the component's name, or NULL for the one of highest priority that accepts the registrar
 * @param registrar   or NULL for the usable one of highest priority
 * @param cache_name  or NULL for "default"
 * @param options     or NULL
 */
PINRAIL_API pinrail_status_t pinrail_mpool_create(const char *mpool, const pinrail_registrar_choice_t *registrar,
                                                  const char *cache_name, const pinrail_mpool_options_t *options,
                                                  pinrail_mpool_t **pool_out);

enum {
  PINRAIL_DESTROY_FORCE = 0x1u /**< even if registrations are referenced; their handles stay valid for one deregister */
};

/**
 * Destroys the pool. Without PINRAIL_DESTROY_FORCE in flags: BUSY if memory of the pool is allocated, a job of
 * pinrail_mpool_prepin_start() or a stream of chunks has not ended, or a registration is referenced. A message says
 * which; the pool is unchanged, but for free memory of pinrail/alloc.h, which may go back to the kernel. BUSY also if
 * the caller is a registrar's function, whatever flags is. OUT_OF_RESOURCE as for pinrail_finalize().
 */
PINRAIL_API pinrail_status_t pinrail_mpool_destroy(pinrail_mpool_t *pool, uint32_t flags);

/** The name of the pool's component, for example "grdma". The string lives as long as the pool. */
PINRAIL_API const char *pinrail_mpool_name(const pinrail_mpool_t *pool);
/** The name of the pool's registrar, for example "verbs". The string lives as long as the pool. */
PINRAIL_API const char *pinrail_mpool_registrar_name(const pinrail_mpool_t *pool);

/**
 * Returns a referenced registration that covers [addr, addr + length) with at least the requested access: one of the
 * cache (a hit), or a new one, for which the device is called (a miss). Each handle needs one
 * pinrail_mpool_deregister(). Deregister before the memory is freed.
 * @param length      bytes, not 0
 * @param access      PINRAIL_ACCESS_* | PINRAIL_TRAIT_*; 0: local read
 * @param flags       PINRAIL_FLAG_*, or 0
 * @param handle_out  written on success only; handle_out->reg has lkey and rkey
 * BAD_PARAM: an argument is wrong. OUT_OF_RESOURCE: the request alone exceeds a limit, or the device has no room although
 * nothing is idle. TEMP_OUT_OF_RESOURCE: references of other requests use up the limit or the device, or other requests
 * take what room there is: drop some, then call again. NOT_SUPPORTED: the registrar cannot register such memory or such access. Other errors are the registrar's.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_register(pinrail_mpool_t *pool, void *addr, size_t length, uint32_t access,
                                                    uint32_t flags, pinrail_handle_t *handle_out);

/** What a request may tell beside its range. dmabuf_fd is -1 and the rest 0 if there is nothing to tell. */
typedef struct pinrail_register_options {
  size_t size;            /**< sizeof(pinrail_register_options_t) */
  int32_t dmabuf_fd;      /**< the range is memory of this dmabuf (PINRAIL_KIND_DMABUF); -1: host memory. The caller
                               may close it after the call */
  uint32_t reserved;      /**< 0 */
  uint64_t dmabuf_offset; /**< offset of addr in the dmabuf */
  uint64_t iova;          /**< the address by which the device shall address addr; 0: addr itself */
  const void *argument;   /**< passed to the registrar: pinrail_register_request_t.argument */
  uint64_t user_value;    /**< kept in the registration: pinrail_registration_read_details() */
} pinrail_register_options_t;

/** Initialises the struct above with its defaults. */
#define PINRAIL_REGISTER_OPTIONS_INIT \
  { sizeof(pinrail_register_options_t), -1, 0, 0, 0, NULL, 0 }

/**
 * As pinrail_mpool_register(), with options. What is cached was registered without them, so the registration is the
 * caller's own, as with PINRAIL_FLAG_CACHE_BYPASS, and ends with its last deregister. With PINRAIL_FLAG_PERSISTENT
 * later requests inside the range hit it, if monitors cover its memory (for memory of a GPU: monitor "external"); and
 * it may itself be a hit on one that was made with the same options (argument: the same pointer). Where one that was
 * made with others is in its way, it is the caller's own after all.
 * BAD_PARAM: an option is wrong, or the range, rounded out to the registrar's granularity, begins before the dmabuf or
 * before address 0 of the device. NOT_SUPPORTED: the mpool takes no options, or the registrar no dmabuf or no iova. All
 * other errors as pinrail_mpool_register().
 */
PINRAIL_API pinrail_status_t pinrail_mpool_register_with(pinrail_mpool_t *pool, void *addr, size_t length,
                                                         uint32_t access, uint32_t flags,
                                                         const pinrail_register_options_t *options,
                                                         pinrail_handle_t *handle_out);

/**
 * As pinrail_mpool_register(), but from the cache only. Takes a reference. NOT_FOUND if no cached registration
 * matches.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_find(pinrail_mpool_t *pool, void *addr, size_t length, uint32_t access,
                                                pinrail_handle_t *handle_out);

/**
 * Drops one reference, on any thread. The registration stays in the cache. BAD_PARAM if the handle's registration no
 * longer exists, or if none of its references is left. If a handle is dropped twice while other requests hold the same
 * registration, one of their references is dropped, and the registration may end while they use it.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_deregister(pinrail_handle_t handle);

/**
 * Whether two handles name one registration: 1, or 0. If the handles of two requests do, the second was a hit.
 * Generations alone do not tell: registrations in different memory may have the same one. The handles may be spent.
 */
static inline int pinrail_handle_equal(pinrail_handle_t one, pinrail_handle_t other) {
  return one.reg == other.reg && one.generation == other.generation;
}

/**
 * Reports that the range's memory is about to be unmapped, or was unmapped. After the return no call returns a
 * registration that overlaps the range, which is rounded out to pages unless the pool's registrar takes no host memory.
 * Does nothing in a pool odp, whose device faults in what is mapped. May be called in a hook and in a signal handler.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_invalidate_range(pinrail_mpool_t *pool, void *addr, size_t length);

/** Deregisters the idle registration of the pool's cache that is the next to be evicted. NOT_FOUND if none is idle. */
PINRAIL_API pinrail_status_t pinrail_mpool_evict(pinrail_mpool_t *pool);

/**
 * Deregisters what memory events invalidated. Needed only for pools that see few other calls and have no gc thread:
 * those with mpool_<name>_gc_thread=never, or with a registrar of thread mode CALLER.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_progress(pinrail_mpool_t *pool);

/**
 * Prepares the pool for a checkpoint, or for the time after a restart.
 *
 * CHECKPOINT, TERM  Deregister everything of this pool that is dead or idle, and wait, at most one second, for
 *     deregistrations on other threads. Referenced registrations stay: if registered_count of
 *     pinrail_mpool_read_stats() is 0, the pools of this cache name left nothing at their devices. Afterwards peers
 *     cannot open blocks of a pool "gpusm" whose registration is not referenced here. Other threads may use the pool
 *     meanwhile; the call does not wait for their new registrations.
 * CONTINUE  Does nothing.
 * RESTART  Abandons every registration, referenced or not: it leaves the cache and the statistics. For an abandoned
 *     registration Pinrail calls no function of the registrar except tail_fini, which must not access the device. A
 *     handle that is still held stays valid for one deregister, which only counts; the memory of a referenced
 *     registration that was cached is not used again.
 *     RESTART excludes every other call on the pool and on the pools of its cache name, and so does work of
 *     pinrail_mpool_prepin_start() and of chunk streams for the others. Each of them needs its own RESTART before any of
 *     them is used again. Memory events may arrive at any time.
 *     Afterwards the pool registers through the same registrar. The embedder who lent the registrar must reopen its
 *     device before, or in the registrar's function restart (registrar.h). A registrar component does not reopen its
 *     device: if the device changed, destroy the pool after RESTART (this reaches no device) and create another.
 *     Pools of GPU memory use the process's present identity, even if its pid or machine changed: older blocks are
 *     NOT_FOUND to peers. They leave alone what belongs to the checkpointed process, because that may still run. The
 *     checkpointer must restore threads, descriptors and driver state. Without a CHECKPOINT before the image was taken,
 *     Pinrail's gc thread may deregister dead memory of the previous incarnation before RESTART is called.
 *
 * BAD_PARAM: pool is NULL, or the state does not exist. NOT_SUPPORTED: the mpool has no such operation. BUSY: the
 * caller is a registrar's function; RESTART: or work of pinrail_mpool_prepin_start() for the pool has not finished, or
 * a chunk stream of the pool is open. NOT_AVAILABLE: in a forked child. OUT_OF_RESOURCE: no memory. RESTART of a pool of
 * GPU memory: NOT_SUPPORTED if the system cannot identify this process. RESTART: also the errors of the registrar. On
 * an error nothing has changed, and the call may be repeated.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_ft_event(pinrail_mpool_t *pool, pinrail_ft_state_t state);

/**
 * For pools of the mpool "gpusm": returns the block by which a peer opens the GPU memory that holds the range. The
 * block names the whole allocation; offset_out receives the range's offset in it. The call takes no reference: the
 * block is valid until the memory is freed. The pool learns of the free from monitor "cuda" or from
 * pinrail_monitor_report(). NOT_FOUND: the range is not GPU memory. NOT_SUPPORTED: another mpool, or memory that the
 * driver cannot share. BAD_PARAM: the range does not lie within one allocation. OUT_OF_RESOURCE:
 * mpool_gpusm_max_exports allocations are exported already. NOT_AVAILABLE: the program closed the validity slots' file.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_export(pinrail_mpool_t *pool, void *addr, size_t length,
                                                  pinrail_gpu_block_t *block_out, size_t *offset_out);

/**
 * For pools of the mpool "rgpusm": returns a referenced registration of the peer's whole allocation. The range
 * [offset, offset + length) of the allocation is mapped at reg->base + offset in this process. BAD_PARAM: the block is
 * damaged, or the range exceeds its allocation. VERSION: the block has another version. PERM: the block is of another
 * user. NOT_SUPPORTED: the block is of another machine, of another pid namespace or of this process, or the pool is of
 * another mpool. NOT_FOUND: the memory was freed. WOULD_BLOCK: a stale mapping that is still referenced occupies the
 * address. OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: as pinrail_mpool_register().
 */
PINRAIL_API pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t *pool, const pinrail_gpu_block_t *block,
                                                           size_t offset, size_t length, uint32_t access,
                                                           uint32_t flags, pinrail_handle_t *handle_out);

/**
 * Reads the registration's bytes as the device sees them; see device_read of pinrail_registrar_t. NOT_SUPPORTED if the
 * registrar has no such function.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_device_read(pinrail_handle_t handle, size_t offset, void *into,
                                                       size_t length);
/** Writes them; see device_write of pinrail_registrar_t. NOT_SUPPORTED if the registrar has no such function. */
PINRAIL_API pinrail_status_t pinrail_mpool_device_write(pinrail_handle_t handle, size_t offset, const void *from,
                                                        size_t length);

/**
 * The owner of GPU memory records an event after the work that is on the stream now: a peer's later
 * pinrail_mpool_wait() waits for that work. Returns without waiting. Each registration has one event, and only its
 * latest record counts. Keep a reference while peers use blocks of the registration: after an eviction a new
 * registration has another event and another block.
 * @param handle  from pinrail_mpool_register() on a pool of the mpool "gpusm"
 * @param stream  CUstream of the GPU's primary context; NULL: that context's default stream
 * BAD_PARAM: the handle's registration no longer exists, or the stream is of another context. NOT_SUPPORTED: the
 * registrar has no events, the memory has none (registrar_cuda_ipc_events is off here, or the driver cannot make one),
 * or it is a peer's memory. NOT_AVAILABLE: in a forked child. OUT_OF_RESOURCE, ERROR: from the driver.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_record(pinrail_handle_t handle, void *stream);

/**
 * Makes all later work on the stream wait for what the owner recorded last with pinrail_mpool_record(). Returns at
 * once. If the owner has recorded nothing, there is nothing to wait for: the owner must therefore notify the peer
 * after it has recorded. If the owner deregistered the memory meanwhile, the stream may also wait for other work of
 * the owner.
 * @param handle  from pinrail_mpool_register_remote() on a pool of the mpool "rgpusm"
 * @param stream  CUstream; NULL: the default stream of the primary context of the GPU where the memory is mapped
 * The owner's pool must still exist. BAD_PARAM: the handle's registration no longer exists, or the stream is invalid.
 * NOT_SUPPORTED: the registrar has no events, the block has none (registrar_cuda_ipc_events is off at its owner), or
 * the memory is this process's own. NOT_FOUND: the owner has exited. NOT_AVAILABLE: in a forked child.
 * OUT_OF_RESOURCE, ERROR: from the driver.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_wait(pinrail_handle_t handle, void *stream);

/**
 * Divides a large range into pieces of at most mpool_<name>_max_reg_size bytes, or the device's own maximum if that is
 * less, cut at multiples of that size.
 */
typedef struct pinrail_chunks {
  uintptr_t next; /**< private */
  uintptr_t end;  /**< private */
  size_t step;    /**< private */
} pinrail_chunks_t;
/**
 * Prepares an iteration over [addr, addr + length); registers nothing. BAD_PARAM: a pointer is NULL, or the range is
 * not valid.
 */
PINRAIL_API pinrail_status_t pinrail_chunks_begin(pinrail_mpool_t *pool, void *addr, size_t length,
                                                  pinrail_chunks_t *chunks_out);
/** Returns the next piece; NOT_FOUND after the last one. */
PINRAIL_API pinrail_status_t pinrail_chunks_next(pinrail_chunks_t *chunks, void **addr_out, size_t *length_out);

/** How a stream registers a large range. Zeros are the defaults. */
typedef struct pinrail_chunk_options {
  size_t size;       /**< sizeof(pinrail_chunk_options_t) */
  size_t chunk_size; /**< bytes, the longest piece, rounded down to the device's granularity; 0:
                          mpool_<name>_max_reg_size. A device's own maximum holds in any case */
  uint32_t ahead;    /**< pieces that a helper thread registers ahead of the caller; 0: none, and no thread. Ignored
                          for a registrar of thread mode CALLER, with PINRAIL_FLAG_CACHE_BYPASS, and from the first
                          piece on that the pool does not cache: it could become stale unseen */
  uint32_t flags;    /**< PINRAIL_FLAG_*, for each registration */
} pinrail_chunk_options_t;

/** Initialises the struct above with its defaults. */
#define PINRAIL_CHUNK_OPTIONS_INIT \
  { sizeof(pinrail_chunk_options_t), 0, 0, 0 }

/** A large range that is registered piece by piece. */
typedef struct pinrail_chunk_stream pinrail_chunk_stream_t;

/**
 * Begins to register [addr, addr + length) in pieces, cut at multiples of the chunk size as by pinrail_chunks_begin().
 * Transfers of the first pieces can so overlap registrations of later ones, and no more than `ahead` pieces and those
 * that the caller holds are referenced at a time.
 * @param access   PINRAIL_ACCESS_* | PINRAIL_TRAIT_*
 * @param options  or NULL for PINRAIL_CHUNK_OPTIONS_INIT
 * The pool cannot be destroyed without PINRAIL_DESTROY_FORCE (BUSY) until pinrail_chunk_stream_close().
 * BAD_PARAM: an argument is wrong. NOT_AVAILABLE: in a forked child. OUT_OF_RESOURCE: no memory.
 */
PINRAIL_API pinrail_status_t pinrail_chunk_stream_open(pinrail_mpool_t *pool, void *addr, size_t length,
                                                       uint32_t access, const pinrail_chunk_options_t *options,
                                                       pinrail_chunk_stream_t **stream_out);

/**
 * Returns the next piece with a reference, which the caller drops by pinrail_mpool_deregister(), in any order and at
 * any time. One thread at a time. A piece that was registered ahead, and whose memory an event has touched since, is
 * registered anew.
 * @param addr_out, length_out  receive the piece; each may be NULL
 * NOT_FOUND: after the last piece, and after the pool was destroyed by force. The errors of pinrail_mpool_register():
 * the piece was not registered, and the call may be repeated, for example after TEMP_OUT_OF_RESOURCE when earlier
 * pieces were deregistered. BUSY: inside a registrar's function. NOT_AVAILABLE: in a forked child.
 */
PINRAIL_API pinrail_status_t pinrail_chunk_stream_next(pinrail_chunk_stream_t *stream, pinrail_handle_t *handle_out,
                                                       void **addr_out, size_t *length_out);

/**
 * Ends the stream after any piece: waits for the helper thread and releases what was registered ahead. Pieces that were
 * handed out stay the caller's. May be called after the pool was destroyed.
 */
PINRAIL_API pinrail_status_t pinrail_chunk_stream_close(pinrail_chunk_stream_t *stream);

/**
 * Reports to monitor "external" that the memory of a range is about to be unmapped or freed. (NULL, SIZE_MAX) means
 * all memory, for example before the reset of a GPU, which also ends peers' mappings. Of host memory whole pages are
 * reported, as the kernel unmaps them; memory of a GPU is reported to the byte. An address with a tag, which the
 * processor ignores, is reported without it as well. May be called before init, after
 * finalize, in an allocator, in a memory hook and in a signal handler; it allocates nothing, logs nothing and
 * preserves errno. Beside other monitors, what none of them sees is reported again when it is gone: a request for its
 * neighbour may have registered it meanwhile (mpool_grdma_extent).
 */
PINRAIL_API void pinrail_monitor_report(void *addr, size_t length);

/**
 * Returns 1 if memory events are seen or reported, so that some kinds of host memory are cached (listing.h lists
 * them); 0 if no kind is, or before init.
 */
PINRAIL_API int pinrail_monitor_works(void);

/**
 * Returns 1 if, besides, the events of all memory are seen or reported; 0 if a monitor at work watches only what pools
 * register, as "uffd" does, which may join later.
 */
PINRAIL_API int pinrail_monitor_sees_all_memory(void);

/**
 * Returns 1 if all that can happen to the memory of the range is seen or reported, so that a registration of it may be
 * kept; 0 if not, before init, or in a signal handler that interrupted Pinrail. Another runtime's cache asks it for each
 * range before it keeps a registration: events that name a file and no addresses (ftruncate, fallocate) reach its
 * subscriber only for mappings for which this function was called. May read files below /proc. It calls no subscriber where
 * pinrail_monitor_sees_all_memory() returns 1, so that it may be called with a lock that the subscriber takes.
 */
PINRAIL_API int pinrail_monitor_covers(const void *addr, size_t length);

/**
 * Receives every memory event on behalf of another runtime's cache in this process, after Pinrail's own pools have
 * handled it. The function runs in the call that causes the event: possibly inside an allocator, on any thread, on
 * several threads at once, with none of Pinrail's locks held. addr and length are those of the event. If events may
 * have been missed, the whole address space is reported. Monitor "uffd" watches what pools register and no other memory:
 * what it alone sees arrives for that alone. The function must not throw, end its thread, or call Pinrail: such a call
 * may wait for the event itself.
 */
typedef void (*pinrail_monitor_event_t)(void *arg, void *addr, size_t length);
/** A subscriber, from pinrail_monitor_subscribe() to pinrail_monitor_unsubscribe(). */
typedef struct pinrail_subscription pinrail_subscription_t;

/**
 * Adds a subscriber. BAD_PARAM: event or subscription_out is NULL, or Pinrail is not initialised. NOT_AVAILABLE: no
 * monitor works, so nothing would be reported.
 */
PINRAIL_API pinrail_status_t pinrail_monitor_subscribe(pinrail_monitor_event_t event, void *arg,
                                                       pinrail_subscription_t **subscription_out);

/**
 * Removes a subscriber and waits for its calls in flight; must not be called inside event. A subscription stays valid
 * until the process ends, also after finalize. NULL is ignored.
 */
PINRAIL_API void pinrail_monitor_unsubscribe(pinrail_subscription_t *subscription);

#ifdef __cplusplus
}
#endif

#endif
