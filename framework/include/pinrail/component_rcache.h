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
 * One register call that will insert a registration. The pool fills in all but `own` and sets waits_for to 0; the record
 * stays at its address until the announcement has ended. While it lasts the index may keep what it likes in `own` and may
 * link the record into a list. The library does not initialise `own`.
 */
typedef struct pinrail_announcement {
  uintptr_t base;  /**< first byte of the range that is asked for; after reannounce(), of what will be registered */
  size_t length;   /**< bytes */
  uint32_t access; /**< rights and traits that are asked for */
  uint32_t more_rights; /**< rights that will be registered in addition */
  uint32_t flags;       /**< PINRAIL_FLAG_PERSISTENT: only registrations with that flag answer; other flags: 0 */
  uint64_t marks;       /**< set by the pool: what publish() passes on to mark_indexed(), PINRAIL_KEEP_* */
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
 * registration in an EXACT index, is dominated by its equal alone, which has that flag if it has.
 *
 * An announcement lasts from the find_or_announce() that made it until a publish() that returns SUCCESS, or withdraw().
 * If invalidate_hook() is called meanwhile for a range that overlaps, the announcement is overtaken.
 *
 * All functions but create and destroy may run on many threads at once. Hooks wait for the locks of the index, and for
 * those that a pool may hold while it calls publish, withdraw and invalidate_hook. So an index allocates and frees
 * without its locks, and only in find_or_announce: there it gets the memory for the registration that is announced.
 */
typedef struct pinrail_rcache_ops {
  size_t size; /**< sizeof(pinrail_rcache_ops_t) */

  /** flags: PINRAIL_RCACHE_*. An unknown flag: NOT_SUPPORTED. */
  pinrail_status_t (*create)(void *component, uint32_t flags, void **module_out);
  void (*destroy)(void *module); /**< ends what create() made */

  /** Finds a registration that answers the request; *reg_out has a reference. NOT_FOUND: none in the index answers. */
  pinrail_status_t (*find)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length, uint32_t access,
                           pinrail_registration_t **reg_out);

  /**
   * A miss: finds as find() does, or announces that the range is being registered, in one step. May allocate. SUCCESS:
   * found, with a reference; nothing was announced. NOT_FOUND: announced. WOULD_BLOCK: nothing was announced, because
   * what another announcement will publish answers this request, too; waits_for names that one. The pool calls again with
   * the same record, at the latest when an announcement has ended, and then waits for none but that one. Other statuses
   * are errors: nothing was announced.
   */
  pinrail_status_t (*find_or_announce)(void *module, pinrail_thread_t *thread, pinrail_announcement_t *announcement,
                                       pinrail_registration_t **reg_out);

  /**
   * From now on the announcement is of this range, which contains what was asked for, and it counts as not overtaken.
   * Neither allocates nor frees.
   */
  void (*reannounce)(void *module, pinrail_announcement_t *announcement, uintptr_t base, size_t length);

  /** Ends an announcement without a registration. TEMP_OUT_OF_RESOURCE: it was overtaken, and publish() has not said
   *  so. */
  pinrail_status_t (*withdraw)(void *module, pinrail_announcement_t *announcement);

  /**
   * Inserts the registration of an announcement, makes it INDEXED with one reference of the caller's (mark_indexed),
   * ends the announcement, and removes and visits all that it dominates. Neither allocates nor frees. thread: the thread
   * of the register call. After any other status reg was not inserted, and the announcement lasts. TEMP_OUT_OF_RESOURCE: the announcement was
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

  /** Optional: passes each registration that overlaps the range to visit, and returns how many there are. The index's
   *  lock is held: visit may take references, allocates nothing, and calls no index. NULL: pools answer no query (pin.h). */
  size_t (*visit_all)(void *module, uintptr_t base, size_t length,
                      void (*visit)(void *arg, pinrail_registration_t *reg), void *arg);

  /** Optional, for tests: checks the index's invariants; ERROR and a line in the log if one is broken. */
  pinrail_status_t (*check)(void *module);
} pinrail_rcache_ops_t;

/** An index as its pool holds it. The library has filled in what is optional, so each function but visit_all can be
 *  called without a look for NULL. */
typedef struct pinrail_rcache {
  void *module;             /**< what create() made: the first argument of the functions */
  pinrail_rcache_ops_t ops; /**< the functions */
} pinrail_rcache_t;

/* ---- registrations --------------------------------------------------------------------------------------------- */

/** State bits of a registration. One that has neither INDEXED nor DEAD is still being made. */
enum {
  PINRAIL_STATE_INDEXED = 0x1u, /**< cached: finds may take references */
  PINRAIL_STATE_DEAD = 0x2u,    /**< no new reference may be taken; it is returned to the device when unreferenced */
  PINRAIL_STATE_OWNED = 0x4u    /**< with DEAD: unreferenced, and one thread owns it, which returns it to the device */
};

/** What a drop came to. */
typedef enum pinrail_drop {
  PINRAIL_DROP_STALE = -1, /**< the handle is of an earlier generation, or there was no reference: nothing happened */
  PINRAIL_DROP_DONE = 0,   /**< dropped */
  PINRAIL_DROP_LAST = 1    /**< dropped, and the registration is DEAD and OWNED by the caller now: take it out of the
                                index, where it may or may not be, return it to the device, and free it */
} pinrail_drop_t;

/** How long an indexed registration lasts: a bit of pinrail_announcement_t::marks. Other bits are the library's. */
enum {
  PINRAIL_KEEP_CACHED = 0,       /**< until it is evicted or an event ends it */
  PINRAIL_KEEP_REFERENCED = 0x10 /**< until its last reference is dropped: that drop returns LAST */
};

/* Bytes of the area of a registration, of which alloc() gives one or the other. What needs more goes into its tail. */
#define PINRAIL_AREA_SMALL 16 /**< for what there are many of */
#define PINRAIL_AREA_LARGE 64 /**< the most */

/** Services for registrations, of indexes and pools. */
typedef struct pinrail_registration_services {
  size_t size; /**< sizeof(pinrail_registration_services_t) of the library */

  /**
   * Makes a registration with a tail and an area of so many bytes; area_size is at most PINRAIL_AREA_LARGE. It is zeroed,
   * has a new generation and no reference. The pool fills in base, length, rights, traits, pool and flags. Not in hooks.
   */
  pinrail_status_t (*alloc)(const pinrail_host_t *host, size_t tail_size, size_t area_size,
                            pinrail_registration_t **reg_out);
  /** Ends it: its handles are stale now. It must have no reference. Not in hooks. */
  void (*free)(const pinrail_host_t *host, pinrail_registration_t *reg);
  /** Returns the area, memory for the pool's own use: aligned to 8; zeroed by alloc(). Any context. */
  void *(*area)(const pinrail_host_t *host, const pinrail_registration_t *reg);

  /** PINRAIL_STATE_* bits. They may change at any time; what the caller's lock excludes does not. Any context. */
  uint32_t (*state)(const pinrail_registration_t *reg);
  /** The generation, as handles have it. Any context. */
  uint64_t (*generation)(const pinrail_registration_t *reg);
  /** How many references there are now. Of a registration that is neither INDEXED nor being made, they only fall. Any
   *  context. */
  uint64_t (*references)(const pinrail_registration_t *reg);

  /**
   * Takes a reference of an INDEXED registration and returns 1. Returns 0 if it is not INDEXED, or has too many
   * references. The caller has found it in an index and prevents its removal meanwhile. Takes no lock; not in hooks.
   */
  int (*take)(pinrail_registration_t *reg);
  /** Drops a reference. Takes no lock. */
  pinrail_drop_t (*drop)(pinrail_handle_t handle);

  /** For publish() of an index, under the index's lock, when the registration is in: makes it INDEXED, with one reference
   *  of the caller's. marks: the announcement's. */
  void (*mark_indexed)(pinrail_registration_t *reg, uint64_t marks);
  /** Makes a new registration DEAD, with one reference of the caller's: it is never cached. */
  void (*mark_uncached)(pinrail_registration_t *reg);
  /**
   * Makes an INDEXED registration DEAD. Returns 1 if this call did so and the registration has no reference: then the
   * caller owns it. Returns 0 if it was DEAD already, or if its last drop will say LAST. Hook context.
   */
  int (*mark_dead_hook)(pinrail_registration_t *reg);
  /** Makes an INDEXED registration without references DEAD. Returns 1 if this call did so: then the caller owns it. */
  int (*retire)(pinrail_registration_t *reg);
  /** For a forced destroy: makes a registration DEAD. Returns 1 if it has no reference: then the caller owns it. Returns
   *  0 if it has some: its handles only count down from now on, and the library frees it; the device must not have it
   *  any more, and the index neither. */
  int (*orphan)(pinrail_registration_t *reg);
} pinrail_registration_services_t;

#ifdef __cplusplus
}
#endif

#endif
