/* SPDX-License-Identifier: BSD-3-Clause
 * component_rcache.h - what the author of an index fills in, and how an index or a pool handles registrations.
 *
 * An index (framework rcache) answers one question for one pool: which registration contains this range? The pool owns
 * the registrations; the index holds pointers to those that are cached. Read component.h first.
 *
 * References. A registration has references, a state and a generation. A find takes a reference for its caller
 * (registrations->take). A registration is not deregistered while it has references. The memory of
 * registrations is never unmapped, so a stale pointer may be read; the generation tells that it is stale.
 */
#ifndef PINRAIL_COMPONENT_RCACHE_H
#define PINRAIL_COMPONENT_RCACHE_H

#include <pinrail/component.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the index ------------------------------------------------------------------------------------------------- */

enum {
  PINRAIL_RCACHE_EXACT = 0x1u /**< a find returns only equal range and access, and no registration dominates another */
};

/** In waits_for: the request shall wait for no announcement. */
#define PINRAIL_WAITS_FOR_NONE UINT64_MAX

/**
 * One register call that will insert a registration. The pool fills in base, length, access and flags and sets waits_for to 0;
 * the record stays at its address until the announcement has ended. While it lasts the index may keep what it likes in
 * `own` and may link the record into a list. The library does not initialise `own`.
 */
typedef struct pinrail_announcement {
  uintptr_t base;       /**< first byte of the range that will be registered */
  size_t length;        /**< bytes */
  uint32_t access;      /**< rights and traits that are asked for */
  uint32_t more_rights; /**< set by find_or_announce(): rights of all registrations with these traits that contain the
                             range, combined; those that add none to `access` may be left out; 0 if there is none */
  uint32_t flags;       /**< PINRAIL_FLAG_PERSISTENT: only registrations with that flag answer; other flags: 0 */
  uint64_t waits_for;   /**< set by find_or_announce() if it returns WOULD_BLOCK: names another announcement.
                             PINRAIL_WAITS_FOR_NONE: it shall not */
  uint64_t own[6];      /**< the index's */
} pinrail_announcement_t;

/** Receives registrations that have left the index: one or more, a few dozen at most. Hook context. The index calls it
 *  with its lock held, so that a remove() of one of them returns later. */
typedef void (*pinrail_visit_hook_t)(void *arg, pinrail_registration_t *const *regs, size_t count);

/**
 * The table of an index. Functions that are not marked optional must be there; an optional one is NULL if the index
 * does without. New functions are added at the end, and are optional.
 *
 * A registration answers a request if it contains the range, has at least the rights and exactly the traits; in an
 * EXACT index it must be equal to the request. One registration dominates another if it contains its range, has at
 * least its rights and exactly its traits. A registration whose flags have PINRAIL_FLAG_PERSISTENT, and any
 * registration in an EXACT index, is dominated by its equal alone.
 *
 * An announcement lasts from the find_or_announce() that made it until a publish() that returns SUCCESS, or withdraw().
 * If invalidate_hook() is called meanwhile for a range that overlaps, the announcement is overtaken.
 *
 * All functions but create and destroy may run on many threads at once. The pool may hold locks while it calls
 * find_or_announce and invalidate_hook, and hooks may wait for those; so find_or_announce, publish, withdraw and
 * invalidate_hook neither allocate nor free, and the index allocates in prepare() without its lock.
 */
typedef struct pinrail_rcache_ops {
  size_t size; /**< sizeof(pinrail_rcache_ops_t) */

  /** flags: PINRAIL_RCACHE_*. An unknown flag: NOT_SUPPORTED. */
  pinrail_status_t (*create)(void *component, uint32_t flags, void **module_out);
  void (*destroy)(void *module); /**< ends what create() made */

  /**
   * Optional: a quick find, without a lock if possible. Returns a registration that answers the request, with a
   * reference, or NULL. It may miss one that is just being moved: a miss is confirmed by find_or_announce().
   */
  pinrail_registration_t *(*find)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                                  uint32_t access);

  /** The same, and sure: NOT_FOUND means that no registration in the index answers. */
  pinrail_status_t (*find_under_lock)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                                      uint32_t access, pinrail_registration_t **reg_out);

  /**
   * A miss: finds as find_under_lock() does, or announces that the range is being registered, in one step. Does not
   * allocate. SUCCESS: found, with a reference; nothing was announced. NOT_FOUND: announced, and there is memory for it.
   * TEMP_OUT_OF_RESOURCE: announced, but prepare() should get memory before publish(). WOULD_BLOCK: nothing was
   * announced, because what another announcement will publish answers this request, too; waits_for names that one. The
   * pool calls again with the same record, at the latest when an announcement has ended, and then waits for none but that
   * one. Other statuses are errors: nothing was announced.
   */
  pinrail_status_t (*find_or_announce)(void *module, pinrail_thread_t *thread, pinrail_announcement_t *announcement,
                                       pinrail_registration_t **reg_out);

  /**
   * Optional, NULL if find_or_announce() never returns TEMP_OUT_OF_RESOURCE: gets the memory for an announcement. May
   * allocate; no lock is held. An error leaves the announcement.
   */
  pinrail_status_t (*prepare)(void *module, pinrail_announcement_t *announcement);

  /** Ends an announcement without a registration. TEMP_OUT_OF_RESOURCE: it was overtaken, and publish() has not said
   *  so. */
  pinrail_status_t (*withdraw)(void *module, pinrail_announcement_t *announcement);

  /**
   * Inserts the registration of an announcement, ends the announcement, and removes and visits all that it dominates.
   * The state of reg is INDEXED already. Neither allocates nor frees. thread: the thread of the register call. After any
   * other status nothing was inserted or removed, and the announcement lasts. TEMP_OUT_OF_RESOURCE: the announcement was
   * overtaken; it counts as not overtaken from now on, and the pool discards reg. BUSY: one that is in dominates reg.
   * OUT_OF_RESOURCE: there is no memory for it.
   */
  pinrail_status_t (*publish)(void *module, pinrail_thread_t *thread, pinrail_announcement_t *announcement,
                              pinrail_registration_t *reg, pinrail_visit_hook_t displaced_hook, void *arg);

  /** Takes one registration out; NOT_FOUND if it is not in. When this has returned, the index does not read it. */
  pinrail_status_t (*remove)(void *module, pinrail_registration_t *reg);

  /** The memory of the range goes away: takes out and visits all that overlaps it, and overtakes announcements. Hook
   *  context. The caller has passed a full barrier. */
  void (*invalidate_hook)(void *module, uintptr_t base, size_t length, pinrail_visit_hook_t visit_hook, void *arg);

  /** Returns how many registrations are in. */
  size_t (*count)(void *module);

  /**
   * Optional, for an index that takes references without registrations->take(): from hide() to unhide() it takes none
   * of these registrations in that way. They are CLAIMED, and their references are about to be summed. A find that ends
   * the claim (take() does) counts as unhide(). Ignored for what is not in.
   */
  void (*hide)(void *module, pinrail_registration_t *const *regs, size_t count);
  void (*unhide)(void *module, pinrail_registration_t *reg); /**< see hide */

  /** Optional: takes a reference to each registration that overlaps the range, writes up to room of them, and returns how
   *  many overlap. NULL: pools answer no query (pin.h). */
  size_t (*find_all)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                     pinrail_registration_t **regs_out, size_t room);

  /** Optional, for tests: checks the index's invariants; ERROR and a line in the log if one is broken. */
  pinrail_status_t (*check)(void *module);

  /** Optional: a table that is not part of this interface, or NULL; see host->extension. */
  const void *(*extension)(const char *name, uint32_t version);
} pinrail_rcache_ops_t;

/** An index as its pool holds it. The library has filled in what is optional, so each function but find_all can be
 *  called without a look for NULL. */
typedef struct pinrail_rcache {
  void *module;             /**< what create() made: the first argument of the functions */
  pinrail_rcache_ops_t ops; /**< the functions */
} pinrail_rcache_t;

/* ---- registrations --------------------------------------------------------------------------------------------- */

/** How the references of a registration are counted. */
typedef enum pinrail_counting {
  PINRAIL_COUNTING_SHARED = 0, /**< in one word: the last drop is seen by the thread that makes it */
  PINRAIL_COUNTING_THREADS =
      1 /**< per thread: threads that take and drop do not share a cache line, but no thread knows
                                    the sum until count_references() */
} pinrail_counting_t;

/** State bits of a registration. One that has neither INDEXED nor DEAD is still being made. */
enum {
  PINRAIL_STATE_INDEXED = 0x1u,    /**< cached: finds may take references */
  PINRAIL_STATE_DEAD = 0x2u,       /**< no new reference may be taken; it is returned to the device when idle */
  PINRAIL_STATE_PER_THREAD = 0x4u, /**< PINRAIL_COUNTING_THREADS */
  PINRAIL_STATE_CLAIMED = 0x8u     /**< with INDEXED: its pool is finding out whether it is idle; a take ends that */
};

/** What a drop came to. */
typedef enum pinrail_drop {
  PINRAIL_DROP_STALE = -1, /**< the handle is of an earlier generation, or there was no reference: nothing happened */
  PINRAIL_DROP_DONE = 0,   /**< dropped */
  PINRAIL_DROP_LAST = 1,   /**< dropped, and it was the last one. SHARED: the caller must act: return a DEAD one to the
                                device, or keep an INDEXED one (see retire_idle) */
  PINRAIL_DROP_DEAD = 2    /**< dropped; it is DEAD and counted per thread: ask settle_dead(DROPPED), or count again */
} pinrail_drop_t;

/** How references that are counted per thread are summed. */
typedef enum pinrail_sum {
  PINRAIL_SUM_NOW = 0,  /**< with a memory barrier of all threads; only of registrations that are CLAIMED or DEAD */
  PINRAIL_SUM_QUIET = 1 /**< without: exact if no thread is in a call on the pool and the caller has synchronised with
                             all, otherwise a hint; of any registration */
} pinrail_sum_t;

/* Bytes of the area of a registration, by the way it is counted. What needs more goes into its tail. */
#define PINRAIL_AREA_SHARED 64  /**< counted SHARED */
#define PINRAIL_AREA_THREADS 16 /**< counted per thread */

#define PINRAIL_REFERENCES_UNKNOWN INT64_MAX /**< the barrier failed: treat the registration as referenced */

/** What settle_dead() shall do with a registration that is DEAD and counted per thread. */
typedef enum pinrail_dead {
  PINRAIL_DEAD_HELD = 0,    /**< it was counted and is referenced: from now on its drops are counted in one place */
  PINRAIL_DEAD_DROPPED = 1, /**< a reference was dropped, or a take failed: count again */
  PINRAIL_DEAD_DROP = 2     /**< drop a reference of one that is HELD */
} pinrail_dead_t;

/** Services for registrations, of indexes and pools. */
typedef struct pinrail_registration_services {
  size_t size; /**< sizeof(pinrail_registration_services_t) of the library */

  /**
   * Makes a registration with a tail of so many bytes. It is zeroed, has a new generation, is counted as asked, and has
   * no reference. The pool fills in base, length, rights, traits, pool and flags. Its memory serves only registrations
   * that are counted alike. Not in hooks.
   */
  pinrail_status_t (*alloc)(const pinrail_host_t *host, size_t tail_size, pinrail_counting_t counting,
                            pinrail_registration_t **reg_out);
  /** Ends it: its handles are stale now. It must have no reference. Not in hooks. */
  void (*free)(const pinrail_host_t *host, pinrail_registration_t *reg);
  /** Returns memory for the pool's own use: PINRAIL_AREA_SHARED or PINRAIL_AREA_THREADS bytes, aligned to 8; zeroed by
   *  alloc(). Any context. */
  void *(*area)(const pinrail_host_t *host, const pinrail_registration_t *reg);

  /** PINRAIL_STATE_* bits. They may change at any time; what the caller's lock excludes does not. Any context. */
  uint32_t (*state)(const pinrail_registration_t *reg);
  /** The generation, as handles have it. Any context. */
  uint64_t (*generation)(const pinrail_registration_t *reg);

  /**
   * Takes a reference of an INDEXED registration and returns 1; a CLAIMED one is claimed no more. Returns 0 if it is not
   * INDEXED, or has too many references. The caller has found it in an index and prevents its removal meanwhile. Takes
   * no lock that the caller might hold; not in hooks.
   */
  int (*take)(const pinrail_host_t *host, pinrail_thread_t *thread, pinrail_registration_t *reg);
  /** Drops a reference. No lock may be held. */
  pinrail_drop_t (*drop)(const pinrail_host_t *host, pinrail_thread_t *thread, pinrail_handle_t handle);

  /** Makes a new registration INDEXED, with one reference of the caller's; publish() follows, under the same lock. */
  void (*mark_indexed)(const pinrail_host_t *host, pinrail_thread_t *thread, pinrail_registration_t *reg);
  /** Makes a new registration DEAD, with one reference of the caller's: it is never cached. SHARED only. */
  void (*mark_uncached)(const pinrail_host_t *host, pinrail_registration_t *reg);
  /**
   * Makes an INDEXED registration DEAD. Returns 1 if this call did so and the caller must end it: it has no
   * reference, or it is counted per thread. Returns 0 if it was DEAD already, or if its last drop will say LAST. Hook
   * context.
   */
  int (*mark_dead_hook)(pinrail_registration_t *reg);
  /**
   * Makes those of count INDEXED registrations without references DEAD, moves these to the front of regs, and
   * returns their number. The caller removes them from the index then. They are of one index, at most 64, and no other
   * thread retires them meanwhile. One memory barrier for all; none if all are SHARED. Not in hooks.
   */
  size_t (*retire_idle)(const pinrail_host_t *host, const pinrail_rcache_t *rcache, pinrail_registration_t **regs,
                        size_t count);
  /** After a forced destroy: a DEAD registration that the device has back and that has references. Its handles only
   *  count down from now on, and the library frees it. */
  void (*orphan)(const pinrail_host_t *host, pinrail_registration_t *reg);

  /**
   * Sums the references of registrations, however they are counted. 0 is certain; more is what was seen;
   * PINRAIL_REFERENCES_UNKNOWN (of all or of none): the barrier failed. One memory barrier for all of them.
   */
  void (*count_references)(const pinrail_host_t *host, pinrail_registration_t *const *regs, size_t count,
                           pinrail_sum_t mode, int64_t *references_out);
  /**
   * For a registration that is DEAD and counted per thread. Returns 1 if it has no reference and the caller must
   * return it to the device; 0 if it is referenced, if another caller returns it, or if it was not HELD before (DROPPED);
   * -1 if there was no reference to drop (DROP). After HELD, the first word of its area belongs to the library.
   */
  int (*settle_dead)(const pinrail_host_t *host, pinrail_handle_t handle, pinrail_dead_t what);
  /** Returns whether new registrations may be counted per thread: 0 once a barrier has failed. */
  int (*counts_per_thread)(const pinrail_host_t *host);
} pinrail_registration_services_t;

#ifdef __cplusplus
}
#endif

#endif
