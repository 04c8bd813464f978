/* SPDX-License-Identifier: BSD-3-Clause
 * pinrail.h - start here: init, pools, register, deregister.
 *
 * Threads  Every call may run on any thread at any time, except pinrail_init() and pinrail_finalize() against all
 *          others, and create and destroy of a pool against other calls on that pool.
 * Fork     In a forked child the pools of the parent are inert: register, find, evict, progress and ft_event say
 *          NOT_AVAILABLE; deregister, destroy and finalize succeed and reach no device. pinrail_init() there gives pools
 *          that work.
 *          The calls must not be made in a child of vfork() before it execs, for that shares the parent's memory.
 * Signals  A signal handler may unmap memory, and call pinrail_monitor_report() and pinrail_mpool_invalidate_range(),
 *          whatever it interrupted. All other calls are not for handlers: where the thread was inside a call that may
 *          have a lock, they return BUSY and nothing has changed; where it was inside a hit, they may spoil its count
 *          of references. A handler must not leave by longjmp.
 * Unwind   Calls are no cancellation points. A function of an embedder's that a call runs may throw (that is an ERROR)
 *          and its thread may end inside it, by pthread_exit() or by cancellation at a cancellation point of the
 *          function's own: the call is left like that, with nothing taken, locked or counted. Only pinrail_init(),
 *          pinrail_finalize(), create and destroy must not be left so. A thread whose cancellation type is
 *          asynchronous must not call, nor unmap memory: POSIX allows it no such function, and under a monitor that
 *          patches them (patcher) they are ours.
 * Exit     A process may exit at any time, on any thread, whatever other threads do in here.
 * Errors   Are values. A call that fails changes nothing. What a program or an administrator has to mend - a wrong
 *          argument (BAD_PARAM), a wrong value of a parameter, a component that cannot be used, a limit that is too
 *          low - is said once, in three lines on stderr or by pinrail_set_message_function(). What a program asks for
 *          and may be refused in the course of things is an answer and is not said: NOT_FOUND, BUSY outside of destroy,
 *          WOULD_BLOCK, NOT_SUPPORTED, NOT_AVAILABLE in a forked child, no room. pinrail_mpool_invalidate_range() says
 *          nothing at all, for it may run in a signal handler.
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

/** One parameter's full name and value, as a user would type them. */
typedef struct pinrail_setting {
  const char *name;
  const char *value;
} pinrail_setting_t;

typedef struct pinrail_init_options {
  size_t size;                       /**< sizeof(pinrail_init_options_t) */
  const pinrail_setting_t *defaults; /**< replace built-in defaults; every other source is stronger */
  size_t default_count;
  const pinrail_setting_t *settings; /**< as strong as a command line */
  size_t setting_count;
  const char *settings_from; /**< what messages call the source of the settings; NULL: "the program". A tool says "the
                                  command line" */
} pinrail_init_options_t;

#define PINRAIL_INIT_OPTIONS_INIT \
  { sizeof(pinrail_init_options_t), NULL, 0, NULL, 0, NULL }

/**
 * Reads the parameters and loads the components. Calls nest: only the first does the work, each needs its
 * pinrail_finalize(). options may be NULL.
 * BAD_PARAM: a value is malformed; NOT_FOUND or the component's own error: one asked for by name cannot be had.
 */
PINRAIL_API pinrail_status_t pinrail_init(const pinrail_init_options_t *options);

/** Undoes one pinrail_init(). The last one destroys what pools are left; BUSY if a registration is referenced. */
PINRAIL_API pinrail_status_t pinrail_finalize(void);

/** "SUCCESS", "OUT_OF_RESOURCE", ... */
PINRAIL_API const char *pinrail_status_name(pinrail_status_t status);

/** A clause that says what the status means: "an argument, a parameter's value or a handle is wrong". */
PINRAIL_API const char *pinrail_status_text(pinrail_status_t status);

/**
 * Receives what Pinrail says, instead of stderr.
 * @param level    PINRAIL_LOG_* of component.h: 0 an error; 1 a warning, or a text of several lines; 10 and more what a <...>_verbose asked for
 * @param channel  who speaks: "base", "grdma", ...
 * @param text     one line, or a topic and three lines below it; no line feed at the end; valid during the call
 * It runs on whatever thread has something to say, several at once, never in a memory hook, perhaps with locks of
 * Pinrail's held: it must not call Pinrail, nor throw, nor end its thread.
 */
typedef void (*pinrail_message_t)(void *arg, int level, const char *channel, const char *text);

/** From now on messages go there; NULL: to stderr again. May be called before pinrail_init(), and holds until it is
 *  called again. A message that another thread began before may still arrive at the former function. */
PINRAIL_API void pinrail_set_message_function(pinrail_message_t function, void *arg);

/** "1.0.0" of the library that runs, which may be another than the header's. */
PINRAIL_API const char *pinrail_version(void);

/** Which registrar a pool shall use: a component by name, or a table of the caller's own, which must outlive the pool. */
typedef struct pinrail_registrar_choice {
  const char *name;                 /**< component; NULL: the best one that works here */
  const pinrail_registrar_t *table; /**< not NULL: use this one; name is ignored */
  void *native;                     /**< handed to the component: a struct ibv_pd * for verbs; or NULL */
} pinrail_registrar_choice_t;

enum {
  PINRAIL_POOL_EXACT = 0x1u /**< hit only on equal range and access */
};

/** What a pool is told beyond the parameters. PINRAIL_UNSET leaves the parameter's value. */
#define PINRAIL_UNSET INT64_MIN
typedef struct pinrail_mpool_options {
  size_t size;          /**< sizeof(pinrail_mpool_options_t) */
  uint32_t flags;       /**< PINRAIL_POOL_* */
  int64_t leave_pinned; /**< -1, 0 or 1 */
  int64_t size_limit;   /**< bytes; 0: no limit */
  int64_t count_limit;  /**< registrations; 0: no limit */
} pinrail_mpool_options_t;

#define PINRAIL_MPOOL_OPTIONS_INIT \
  { sizeof(pinrail_mpool_options_t), 0, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_UNSET }

/**
 * Makes a new pool. Pools of one mpool component and one cache_name share their budget and their order of eviction,
 * never registrations.
 * @param mpool       component's name, or NULL for the one of highest priority that takes the registrar
 * @param registrar   or NULL for the best one that works here
 * @param cache_name  or NULL for "default"
 * @param options     or NULL
 */
PINRAIL_API pinrail_status_t pinrail_mpool_create(const char *mpool, const pinrail_registrar_choice_t *registrar,
                                                  const char *cache_name, const pinrail_mpool_options_t *options,
                                                  pinrail_mpool_t **pool_out);

enum { PINRAIL_DESTROY_FORCE = 0x1u /**< also with references; their handles stay good for one harmless deregister */ };

/** BUSY, and nothing changed, if a registration is referenced (the first few are listed), unless flags has FORCE. */
PINRAIL_API pinrail_status_t pinrail_mpool_destroy(pinrail_mpool_t *pool, uint32_t flags);

/** Names of what the pool runs on: "grdma", "verbs". They live as long as the pool. */
PINRAIL_API const char *pinrail_mpool_name(const pinrail_mpool_t *pool);
PINRAIL_API const char *pinrail_mpool_registrar_name(const pinrail_mpool_t *pool);

/**
 * A referenced registration that covers [addr, addr + length) with at least that access.
 * @param length  bytes, not 0
 * @param access  PINRAIL_ACCESS_* | PINRAIL_TRAIT_*
 * @param flags   PINRAIL_FLAG_*
 */
PINRAIL_API pinrail_status_t pinrail_mpool_register(pinrail_mpool_t *pool, void *addr, size_t length, uint32_t access,
                                                    uint32_t flags, pinrail_handle_t *handle_out);

/** As register, but from the cache only: NOT_FOUND otherwise. Takes a reference. */
PINRAIL_API pinrail_status_t pinrail_mpool_find(pinrail_mpool_t *pool, void *addr, size_t length, uint32_t access,
                                                pinrail_handle_t *handle_out);

/**
 * Drops one reference, on any thread. BAD_PARAM for a handle whose registration is gone. A handle that is spent while
 * its registration is still cached is BAD_PARAM too where the calling thread can tell (references are counted per
 * thread); elsewhere one drop too many may let a registration go that another caller still holds.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_deregister(pinrail_handle_t handle);

/** The range is about to go, or went, away: afterwards no call returns a registration that overlaps it. */
PINRAIL_API pinrail_status_t pinrail_mpool_invalidate_range(pinrail_mpool_t *pool, void *addr, size_t length);

/** Gives back the least recently used idle registration of the pool's cache. NOT_FOUND if nothing is idle. */
PINRAIL_API pinrail_status_t pinrail_mpool_evict(pinrail_mpool_t *pool);

/** Gives back what events killed. Needed only for pools that see few other calls and have no gc thread:
 *  mpool_<name>_gc_thread=never, or a registrar of thread mode CALLER. */
PINRAIL_API pinrail_status_t pinrail_mpool_progress(pinrail_mpool_t *pool);

/**
 * Prepares the pool for a checkpoint, or for the life after a restart.
 *
 * CHECKPOINT, TERM  Give back what events killed and everything idle of this pool, and wait for what other threads are
 *     giving back, a second at most. What is referenced stays: registered_count of pinrail_mpool_read_stats() is 0 if
 *     the pools of this cache name left nothing at their devices. Blocks of a pool "gpusm" that nobody holds here are
 *     dead to peers afterwards. Other threads may use the pool meanwhile; what they register anew is not looked for.
 * CONTINUE  Nothing.
 * RESTART  Abandons every registration, held or not: it leaves the cache and the figures, and neither deregister_mem nor
 *     any other function of the registrar is called with it, but for tail_fini, which must not reach for the device. A
 *     handle that is held stays good for one deregister, which only counts; the memory of a held registration that was
 *     cached is not used again. Excludes every other call on the pool and on the pools of its cache name, of which each
 *     must be told of the restart before any is used again; memory events may come at any time. The pool registers anew
 *     by the same registrar, which whoever lent it has opened again by then, or does so when it is told of the restart
 *     (registrar.h, restart). A registrar component does not open its device anew: where that is not what it was, destroy
 *     the pool after RESTART, which then reaches no device, and make another. Pools of GPU memory name the process as it
 *     is now, also if it has another pid or runs on another machine: blocks of before are NOT_FOUND to peers, and what
 *     belongs to the process that was checkpointed is left to it, for it may live on. That its threads, descriptors and
 *     state of the driver are there again is the checkpointer's affair. Without a CHECKPOINT before the image, Pinrail's
 *     gc thread may give dead memory of the past life to the device before RESTART is called.
 *
 * BAD_PARAM: pool is NULL, or a state that does not exist; NOT_SUPPORTED: the mpool has no such operation; BUSY: called by
 * a registrar's function; NOT_AVAILABLE: in a forked child; OUT_OF_RESOURCE: no memory; RESTART of a pool of GPU memory:
 * NOT_SUPPORTED: the system does not say who this process is; RESTART: what the registrar says. On an error nothing has
 * changed, and the call may be made again.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_ft_event(pinrail_mpool_t *pool, pinrail_ft_state_t state);

/**
 * For pools of the mpool "gpusm": the block by which a peer opens the GPU memory that holds the range. It names the whole
 * allocation; offset_out is where the range begins in it. Holds nothing: the block is good until the memory is freed,
 * which the pool learns from monitor "cuda" or from pinrail_monitor_report().
 * NOT_FOUND: no GPU memory; NOT_SUPPORTED: another mpool, or memory that the driver cannot share; BAD_PARAM: the range
 * does not lie within one allocation; OUT_OF_RESOURCE: more than mpool_gpusm_max_exports are exported.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_export(pinrail_mpool_t *pool, void *addr, size_t length,
                                                  pinrail_gpu_block_t *block_out, size_t *offset_out);

/**
 * For pools of the mpool "rgpusm": a referenced registration of the peer's whole allocation; the range [offset, offset +
 * length) of it is at reg->base + offset here.
 * BAD_PARAM: the block is damaged, or the range is not within it; VERSION: a block of another version; PERM: of another
 * user; NOT_SUPPORTED: of another machine or pid namespace, of this process itself, or the pool is of another mpool;
 * NOT_FOUND: its memory was freed; WOULD_BLOCK: a stale mapping that is still referenced is in the way;
 * OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: as pinrail_mpool_register().
 */
PINRAIL_API pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t *pool, const pinrail_gpu_block_t *block,
                                                           size_t offset, size_t length, uint32_t access,
                                                           uint32_t flags, pinrail_handle_t *handle_out);

/** What the device sees of a registration; see pinrail_registrar_t. NOT_SUPPORTED where the registrar cannot. */
PINRAIL_API pinrail_status_t pinrail_mpool_device_read(pinrail_handle_t handle, size_t offset, void *into,
                                                       size_t length);
PINRAIL_API pinrail_status_t pinrail_mpool_device_write(pinrail_handle_t handle, size_t offset, const void *from,
                                                        size_t length);

/**
 * The owner of GPU memory marks what was put on that stream until now: peers that call pinrail_mpool_wait() from here on
 * wait for it. The mark is the registration's, and the latest one counts: hold the registration for as long as peers use
 * blocks of it, for one that was evicted and made anew has another mark, and another block.
 * @param handle  of pinrail_mpool_register() on a pool of the mpool "gpusm"
 * @param stream  CUstream of the GPU's primary context; NULL: that context's default stream
 * Does not wait itself. BAD_PARAM: a handle whose registration is gone, or a stream of another context; NOT_SUPPORTED: a
 * registrar without events, memory that has none (registrar_cuda_ipc_events is off here, or the driver has none), or a
 * peer's memory; NOT_AVAILABLE: in a forked child; OUT_OF_RESOURCE, ERROR: the driver's.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_record(pinrail_handle_t handle, void *stream);

/**
 * What is put on that stream from now on is not begun before what the owner recorded last is done. Returns at once, also
 * if nothing was recorded yet, for then there is nothing to wait for: the owner tells the peer after it has recorded. It
 * may wait for other work of the owner's besides, where the memory was deregistered there meanwhile.
 * @param handle  of pinrail_mpool_register_remote() on a pool of the mpool "rgpusm"
 * @param stream  CUstream; NULL: the default stream of the primary context of the GPU where the memory is mapped
 * The owner's pool has to be there still. BAD_PARAM: a handle whose registration is gone, or a stream that is none;
 * NOT_SUPPORTED: a registrar without events, a block without one (registrar_cuda_ipc_events is off at its owner), or
 * memory of one's own; NOT_FOUND: its owner is gone; NOT_AVAILABLE: in a forked child; OUT_OF_RESOURCE, ERROR: the
 * driver's.
 */
PINRAIL_API pinrail_status_t pinrail_mpool_wait(pinrail_handle_t handle, void *stream);

/** Steps through a large range in pieces of at most mpool_<name>_max_reg_size bytes, cut at multiples of it. */
typedef struct pinrail_chunks {
  uintptr_t next, end; /**< private */
  size_t step;
} pinrail_chunks_t;
PINRAIL_API pinrail_status_t pinrail_chunks_begin(pinrail_mpool_t *pool, void *addr, size_t length,
                                                  pinrail_chunks_t *chunks_out);
/** NOT_FOUND at the end. */
PINRAIL_API pinrail_status_t pinrail_chunks_next(pinrail_chunks_t *chunks, void **addr_out, size_t *length_out);

/**
 * The embedder's report to monitor "external" that a range is about to go away. (NULL, SIZE_MAX): everything, as before
 * the reset of a GPU, which ends peers' mappings, too. Legal before init, after finalize, in an allocator or a memory
 * hook; takes no memory, logs nothing, preserves errno.
 */
PINRAIL_API void pinrail_monitor_report(void *addr, size_t length);

/** 1 if memory events are seen or reported, so that some host memory is cached (listing.h tells which kinds); 0 if none is,
 *  or before init. */
PINRAIL_API int pinrail_monitor_works(void);

/**
 * Another runtime's cache in this process, to which every memory event is passed on after Pinrail's own pools have
 * heard of it. It is called where the event happens, perhaps inside an allocator, on any thread, several at a time, with
 * no lock of Pinrail's held; the whole address space is reported when events may have been missed. addr and length are
 * those of the event.
 */
typedef void (*pinrail_monitor_event_t)(void *arg, void *addr, size_t length);
typedef struct pinrail_subscription pinrail_subscription_t;

/** BAD_PARAM: event or subscription_out is NULL, or before init; NOT_AVAILABLE: nothing would ever be reported. */
PINRAIL_API pinrail_status_t pinrail_monitor_subscribe(pinrail_monitor_event_t event, void *arg,
                                                       pinrail_subscription_t **subscription_out);

/** Waits for calls in flight: not from inside event. Good until the process ends, after finalize too; NULL is nothing. */
PINRAIL_API void pinrail_monitor_unsubscribe(pinrail_subscription_t *subscription);

#ifdef __cplusplus
}
#endif

#endif
