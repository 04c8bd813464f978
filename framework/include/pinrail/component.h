/* SPDX-License-Identifier: BSD-3-Clause
 * component.h - what a component author fills in: one descriptor, and one table of functions per framework.
 *
 * A component is an ELF shared object <framework>_<name>.so that exports one symbol, `pinrail_component`. It links
 * against nothing of Pinrail: services come in the host table that open() is given. It keeps no mutable globals, for
 * two copies of Pinrail in one process may load the same file: what it needs hangs on its context.
 *
 * Contexts of functions: start-up (open, close, create, destroy), API (everything else), hook (name ends in _hook:
 * no allocation, no free, no log, no lock that is held across one of these).
 */
#ifndef PINRAIL_COMPONENT_H
#define PINRAIL_COMPONENT_H

#include <pinrail/params.h>
#include <pinrail/registrar.h>
#include <pinrail/stats.h>
#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One number per border; raised when its table changes in a way that an old binary would not survive. */
enum {
  PINRAIL_HOST_ABI = 1,
  PINRAIL_MPOOL_ABI = 1,
  PINRAIL_RCACHE_ABI = 1,
  PINRAIL_REGISTRAR_ABI = 1,
  PINRAIL_MONITOR_ABI = 1
};

typedef struct pinrail_host pinrail_host_t;

/** The descriptor. Its first four fields never move: they are what a loader of another age compares. */
typedef struct pinrail_component {
  size_t size;        /**< sizeof(pinrail_component_t) */
  uint32_t abi;       /**< PINRAIL_<FRAMEWORK>_ABI */
  int32_t priority;   /**< highest wins; below 0: only when named in the framework's selection list */
  char framework[16]; /**< "mpool", "rcache", "registrar", "monitor" */
  char name[32];
  const char *version;
  const char *help;              /**< one line: when to choose it */
  const char *help_catalogue;    /**< text of its help file; see base/report; or NULL */
  const pinrail_param_t *params; /**< or NULL */
  size_t param_count;
  const char *const *synonym_prefixes; /**< {"rcache_grdma_", NULL}: old families of names; or NULL */

  /** NOT_AVAILABLE: nothing here for it (no device, no driver). Runs at start-up, parameters can be read. */
  pinrail_status_t (*open)(const pinrail_host_t *host, void **context_out);
  void (*close)(void *context);

  const void *ops; /**< the framework's table below; it starts with its size */
} pinrail_component_t;

/* Exported by a DSO; a static build renames it, so that many fit into one library. */
#ifndef PINRAIL_COMPONENT_SYMBOL
#define PINRAIL_COMPONENT_SYMBOL pinrail_component
#endif

/* ---- registrar ------------------------------------------------------------------------------------------------- */

typedef struct pinrail_registrar_ops {
  size_t size;
  /**
   * Makes one registrar for one pool. native is the embedder's (struct ibv_pd * for verbs) or NULL.
   * NOT_AVAILABLE: this machine or this user cannot have it; selection goes on with the next one.
   */
  pinrail_status_t (*create)(void *component, void *native, pinrail_registrar_t *registrar_out);
  void (*destroy)(void *component, pinrail_registrar_t *registrar);
} pinrail_registrar_ops_t;

/** A registrar as pools call it: checked, and serialised where it asks for that. */
typedef struct pinrail_bound_registrar pinrail_bound_registrar_t;

/** How the references of a registration are counted. */
typedef enum pinrail_counting {
  PINRAIL_COUNTING_SHARED = 0, /**< in its state word: the last drop is seen at once */
  PINRAIL_COUNTING_THREADS = 1 /**< per thread: a hit writes nothing that two threads meet on */
} pinrail_counting_t;

/** How references that are counted per thread are summed. */
typedef enum pinrail_sum {
  PINRAIL_SUM_NOW = 0,  /**< after a barrier, of what nobody can take any more: claimed or dead */
  PINRAIL_SUM_QUIET = 1 /**< no barrier: no call on their pool is under way, and its caller has seen the others end */
} pinrail_sum_t;

#define PINRAIL_REFERENCES_UNKNOWN INT64_MAX /**< the barrier failed: it is held */

/** What is to be done with one that is dead and counted per thread; references/C5. */
typedef enum pinrail_dead {
  PINRAIL_DEAD_HELD = 0,    /**< it was summed, and is held: from now on its drops are counted as they come */
  PINRAIL_DEAD_DROPPED = 1, /**< a reference was dropped in a reference slot, or in vain taken: add up again */
  PINRAIL_DEAD_DROP = 2     /**< drop a reference */
} pinrail_dead_t;

/** One step on an index's way to where something would stand. */
typedef struct pinrail_step {
  const void *node;
  uint64_t version;
  uint32_t slot;
} pinrail_step_t;

#define PINRAIL_STEPS 8

/** What a find of a thread came to when it was sure that an index had nothing: that index's own; see rcache begin. */
typedef struct pinrail_absent {
  const void *index; /**< NULL: nothing is known */
  uint64_t inserts;  /**< how many inserts it had seen */
  uintptr_t base;
  size_t length;
  uint32_t access;
  uint32_t steps; /**< those of the way that it went: the insert need not go it again */
  pinrail_step_t way[PINRAIL_STEPS];
} pinrail_absent_t;

/** What Pinrail knows of one thread; made on the thread's first call. Passed down, so that no component needs TLS. */
typedef struct pinrail_thread {
  size_t size;
  uint32_t index;        /**< small, dense, reused when a thread has ended */
  uint32_t in_registrar; /**< depth of registrar calls that this thread is in */
  uint64_t *ref_slots;   /**< its counts of references, see base/registration/references.h */
  uint64_t *rollbacks;   /**< of all threads: how many references were counted in vain and taken back */
  uint64_t *epoch;       /**< the process's clock of uses, see base/lru/epoch.h */
  pinrail_absent_t absent;
  void *spare;           /**< the library's own: a free registration, kept for the thread's next one */
  void *recent;          /**< the library's own: what the thread asked for lately, see base/hit/recent.h */
  uint64_t *dates;       /**< of the process: from where its uses of GPU memory are dated, see base/lru/timestamps.h */
  uint64_t last_date;    /**< of the thread's last such use, */
  const void *last_used; /**< and of what that was, or NULL */
  struct pinrail_start_bucket *gpu_bucket; /**< the process's, see base/hit/allocation_table.h */
  /** Adds what the thread's reference slots count of the registration to its own count; they count 0 of it then. The calling
   *  thread's record. */
  void (*fold)(const struct pinrail_thread *thread, const pinrail_registration_t *reg);
} pinrail_thread_t;

/**
 * Of one thread: the locks that hooks take and that it holds or waits for, and the memory events that signal handlers
 * have left for it meanwhile. A thread that holders of such locks may wait for does not sleep for one: it sets
 * while_waiting_hook, which is called between two tries.
 */
typedef struct pinrail_hook_depth {
  uint32_t depth;
  uint32_t waiting;
  void (*while_waiting_hook)(void *arg);
  void *waiting_arg;
} pinrail_hook_depth_t;

/* ---- rcache: the index ----------------------------------------------------------------------------------------- */

enum {
  PINRAIL_RCACHE_EXACT = 0x1u /**< find only equal ranges and access; nothing dominates anything */
};

enum { PINRAIL_START_ENTRIES = 3 };

/** Three of them, all that a hit needs to know of a registration: base/hit/start_bucket.h. All words are atomic. */
typedef struct pinrail_start_bucket {
  uint32_t version;                             /**< odd while the line is changed */
  uint32_t dates[PINRAIL_START_ENTRIES];        /**< of the last use: the low half of an epoch */
  uint32_t pages[PINRAIL_START_ENTRIES];        /**< where it starts: the low half of the page's number */
  uint32_t extents[PINRAIL_START_ENTRIES];      /**< more of that, its length and access; 0 if the entry is free */
  uint64_t incarnations[PINRAIL_START_ENTRIES]; /**< which registration, and its generation */
} __attribute__((aligned(64))) pinrail_start_bucket_t;

/** A hash table of registrations by the address at which they start, for readers without a lock: base/hit/start_table.h. */
typedef struct pinrail_start_table {
  pinrail_start_bucket_t *buckets;
  uint64_t count, more; /**< buckets before and after it grows; equal when it does not. Atomic */
  uint64_t grown;       /**< places from here on have their homes among more lines already; atomic */
  char *const *chunks;  /**< of the process's registrations, by number: base/registration/registration_arena.h */
} pinrail_start_table_t;

/** Hook context: these have left the index; one or more, some dozens at most. */
typedef void (*pinrail_visit_hook_t)(void *arg, pinrail_registration_t *const *regs, size_t count);

typedef struct pinrail_rcache_ops {
  size_t size;
  pinrail_status_t (*create)(void *component, uint32_t flags, void **module_out);
  void (*destroy)(void *module);

  /**
   * The beginning of an insert, and the last look before it: SUCCESS, as find_locked; else nothing contains the range,
   * rights_out holds the rights of all that would contain it if it asked for no rights, or-ed (0 if none), and one
   * insert of the access or of those rights besides is announced: NOT_FOUND: the memory for it is there;
   * TEMP_OUT_OF_RESOURCE: prepare() must get it. Does not allocate.
   */
  pinrail_status_t (*begin)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length, uint32_t access,
                            pinrail_registration_t **reg_out, uint32_t *rights_out);
  /** Announces an insert; for one that begin() announced already call it with announced = 1. OUT_OF_RESOURCE: takes the
   *  announcement back. */
  pinrail_status_t (*prepare)(void *module, int announced);
  /** Takes an announcement back. Each one is followed by one insert or cancel. */
  void (*cancel)(void *module);

  /**
   * Puts reg in; what it dominates (same traits, no more rights, contained, not persistent) leaves and is visited.
   * BUSY: one that is in dominates reg; nothing changed. Neither allocates nor frees.
   * thread: who has looked for it in vain; if it has counted a reference of it, it notes its start for the release.
   * Or NULL.
   */
  pinrail_status_t (*insert)(void *module, const pinrail_thread_t *thread, pinrail_registration_t *reg,
                             pinrail_visit_hook_t displaced, void *arg);

  /** NOT_FOUND if it is not in. */
  pinrail_status_t (*remove)(void *module, pinrail_registration_t *reg);

  /** These were claimed, and nobody has summed them yet: no way that does not look at the state word may lead to them,
   *  until one is unclaimed, by who claimed it or by find_locked. For those that are not in nothing happens. */
  void (*hide)(void *module, pinrail_registration_t *const *regs, size_t count);
  void (*unhide)(void *module, pinrail_registration_t *reg);

  /**
   * A referenced registration that contains the range, with the rights of that access or more and exactly its traits.
   * Takes no lock and never waits; NULL may be said although one was just being moved: only find_locked is sure.
   */
  pinrail_registration_t *(*find)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                                  uint32_t access);
  /** The same, for who has looked into start_table() in vain. */
  pinrail_registration_t *(*find_elsewhere)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                                            uint32_t access);
  pinrail_status_t (*find_locked)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                                  uint32_t access, pinrail_registration_t **reg_out);

  /** Takes a reference to each registration that overlaps the range and writes up to room of them; returns how many
   *  overlap. */
  size_t (*find_all)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length,
                     pinrail_registration_t **regs_out, size_t room);

  /** Everything that overlaps the range leaves, and is visited. Hook context. */
  void (*invalidate_hook)(void *module, uintptr_t base, size_t length, pinrail_visit_hook_t visit_hook, void *arg);

  /** The index's table of starts, good until destroy (see host service forget_notes); NULL if it has none, or may not be read past find(). */
  const pinrail_start_table_t *(*start_table)(void *module);

  size_t (*count)(void *module);
  /** Unique bytes that what is in covers. */
  size_t (*covered_bytes)(void *module);
  /** Checks the module's invariants; ERROR and a line in the log if one is broken. For tests. */
  pinrail_status_t (*check)(void *module);
} pinrail_rcache_ops_t;

typedef struct pinrail_rcache {
  const pinrail_rcache_ops_t *ops;
  void *module;
} pinrail_rcache_t;

/* ---- mpool ----------------------------------------------------------------------------------------------------- */

typedef struct pinrail_mpool_config {
  size_t size;
  pinrail_mpool_t *pool; /**< to be written into each registration */
  const char *cache_name;
  pinrail_bound_registrar_t *registrar;
  const pinrail_registrar_t *limits; /**< the registrar's granularity, max_length, tail_size, kinds, thread_mode */
  uint32_t flags;                    /**< PINRAIL_POOL_* */
  int64_t leave_pinned, size_limit, count_limit; /**< PINRAIL_UNSET or explicit */
} pinrail_mpool_config_t;

enum { PINRAIL_ACCESS_FLAGS_SHIFT = 32 };

/** Whose GPU memory: one segment of one exporter. All words are atomic. */
typedef struct pinrail_owner {
  uint64_t pid, start, segment; /**< as blocks have them */
  const uint64_t *words;        /**< of its validity slots; NULL: it has none */
} pinrail_owner_t;

/** All that a hit needs to know of the registration of an allocation of GPU memory: half a line. All words are atomic;
 *  base/hit/allocation_table.h. */
typedef struct pinrail_allocation {
  uint64_t key;         /**< identifies the allocation among its owner's, XORed with the owner's salt */
  uint64_t incarnation; /**< which registration, and its generation */
  uint64_t tag;      /**< a sum of all else that names it, the entry's version, and the owner's number; that is 0 of a
                          free one */
  uint64_t last_use; /**< a date: base/lru/timestamps.h */
} pinrail_allocation_t;

enum { PINRAIL_WORDS_HINTS = 4096 };

/** A hash table of registrations by the allocation that they are of, for readers without a lock:
 *  base/hit/allocation_table.h. */
typedef struct pinrail_allocation_table {
  pinrail_allocation_t *entries; /**< lines of two, a power of two of them; atomic */
  uint64_t mask;                 /**< their bytes less a line, set after `entries`; atomic */
  const pinrail_owner_t *owners; /**< by number, set before an entry has that; atomic */
  const uint64_t *words; /**< where the words of owners' slots may lie, for who fetches them early: PINRAIL_WORDS_HINTS
                              addresses, by the owner's salt; atomic */
  char *const *chunks;   /**< of the process's registrations, as in pinrail_start_table_t */
  uint64_t *hits;        /**< of thread i: hits[16 * i], written by that thread alone */
  uint32_t hit_threads;  /**< threads with a higher index shall ask the pool, now; atomic */
} pinrail_allocation_table_t;

/**
 * By what the C face answers hits itself, without a call: for pools whose hits need no more than an indexed, unclaimed
 * registration that covers the range, counted per thread. All zero: it shall ask the pool each time.
 */
typedef struct pinrail_shortcut {
  const pinrail_start_table_t *start_table;
  uintptr_t page_mask;                           /**< the registrar's granularity - 1 */
  uint64_t *hits;                                /**< of thread i: hits[16 * i], written by that thread alone */
  uint32_t hit_threads;                          /**< threads with a higher index shall ask the pool */
  const pinrail_allocation_table_t *allocations; /**< of peers' GPU memory; NULL: ask the pool */
} pinrail_shortcut_t;

typedef struct pinrail_mpool_ops {
  size_t size;
  /** NOT_SUPPORTED: this mpool cannot work with that registrar. */
  pinrail_status_t (*create)(void *component, const pinrail_mpool_config_t *config, void **module_out);
  /** Asked once, after create; what it says holds until destroy. */
  void (*shortcut)(void *module, pinrail_shortcut_t *shortcut_out);
  /** BUSY, with nothing changed, if something is referenced and flags has no PINRAIL_DESTROY_FORCE. */
  pinrail_status_t (*destroy)(void *module, pinrail_thread_t *thread, uint32_t flags);
  /** How many registrations are referenced. */
  size_t (*referenced)(void *module);
  /** access_and_flags: the access below, PINRAIL_FLAG_* above, with PINRAIL_ACCESS_FLAGS_SHIFT. Checked by the C face, as is the range.
   *  Six arguments, for they travel in registers. */
  pinrail_status_t (*register_mem)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                                   uint64_t access_and_flags, pinrail_handle_t *handle_out);
  pinrail_status_t (*find)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                           uint64_t access_and_flags, pinrail_handle_t *handle_out);
  /** The handle's generation was the registration's when the C face looked. */
  pinrail_status_t (*deregister)(void *module, pinrail_thread_t *thread, pinrail_handle_t handle);
  /** The C face dropped a reference by the shortcut, and found the registration dead; state is its word. */
  void (*dropped_dead)(void *module, pinrail_thread_t *thread, pinrail_handle_t handle, uint64_t state);
  void (*invalidate_range_hook)(void *module, uintptr_t base, size_t length);
  pinrail_status_t (*evict)(void *module, pinrail_thread_t *thread);
  pinrail_status_t (*progress)(void *module, pinrail_thread_t *thread);
  pinrail_status_t (*stats)(void *module, pinrail_mpool_stats_t *stats_out);
  /** In a forked child the only calls on a module of the parent are this and counters(): neither takes a lock nor
   *  follows a list, for other threads may have been in the middle of anything. */
  size_t (*max_reg_size)(void *module);
  /** The figures that count what happened, and the limits; those of what is registered now stay as they are. */
  void (*counters)(void *module, pinrail_mpool_stats_t *stats_out);
  /** Checks the module's invariants. For tests. */
  pinrail_status_t (*check)(void *module);
  /** PINRAIL_KIND_* bits; where the caller names no registrar, one that takes at least one of them. 0: any. */
  uint32_t kinds;
  /** Optional: pinrail_mpool_export() and pinrail_mpool_register_remote(), see pinrail.h. The C face has looked for NULL
   *  and unknown bits; what the block says is not checked. */
  pinrail_status_t (*export_range)(void *module, pinrail_thread_t *thread, uintptr_t addr, size_t length,
                                   pinrail_gpu_block_t *block_out, size_t *offset_out);
  pinrail_status_t (*register_remote)(void *module, pinrail_thread_t *thread, const pinrail_gpu_block_t *block,
                                      size_t offset, size_t length, uint64_t access_and_flags,
                                      pinrail_handle_t *handle_out);
  /** Optional: pinrail_mpool_ft_event(), see pinrail.h. The C face has looked at the state, and no registrar's function
   *  calls it. RESTART: the gc thread drains nothing meanwhile; hooks may come in. */
  pinrail_status_t (*ft_event)(void *module, pinrail_thread_t *thread, pinrail_ft_state_t state);
  /** Optional: pinrail_mpool_query(), see pin.h. Calls visit with the range of each registration that is in the index,
   *  overlaps [base, base + length), and has at least the rights and exactly the traits of access; in any order. Leaves
   *  no reference and is no use of what it visits. */
  pinrail_status_t (*query)(void *module, pinrail_thread_t *thread, uintptr_t base, size_t length, uint32_t access,
                            void (*visit)(void *arg, uintptr_t base, size_t length), void *arg);
} pinrail_mpool_ops_t;

/* ---- monitor --------------------------------------------------------------------------------------------------- */

/** What can make registrations stale, by the call that causes it. */
enum {
  PINRAIL_EVENT_UNMAP = 0x1u,
  PINRAIL_EVENT_MAP_OVER = 0x2u,         /**< mmap with MAP_FIXED */
  PINRAIL_EVENT_REMAP = 0x4u,            /**< mremap: what moves or shrinks */
  PINRAIL_EVENT_REMAP_ONTO = 0x8u,       /**< mremap with MREMAP_FIXED: what it lands on */
  PINRAIL_EVENT_DONTNEED = 0x10u,        /**< madvise; DONTNEED_LOCKED too */
  PINRAIL_EVENT_REMOVE = 0x20u,          /**< madvise */
  PINRAIL_EVENT_GUARD_INSTALL = 0x40u,   /**< madvise */
  PINRAIL_EVENT_PROCESS_MADVISE = 0x80u, /**< of the process itself */
  PINRAIL_EVENT_BRK = 0x100u,            /**< downwards */
  PINRAIL_EVENT_SHMDT = 0x200u,
  PINRAIL_EVENT_SHMAT_OVER = 0x400u, /**< shmat with SHM_REMAP */
  PINRAIL_EVENT_PUNCH_HOLE = 0x800u, /**< fallocate */
  PINRAIL_EVENT_TRUNCATE = 0x1000u,
  PINRAIL_EVENT_REMAP_FILE_PAGES = 0x2000u,
  PINRAIL_EVENTS_ALL = 0x3fffu
};

/** What kind of memory a mapping is, as far as different events can happen to it. */
typedef enum pinrail_mapping_kind {
  PINRAIL_MAPPING_NONE = 0, /**< nothing is mapped there, or it is not known */
  PINRAIL_MAPPING_ANONYMOUS = 1,
  PINRAIL_MAPPING_HEAP = 2,
  PINRAIL_MAPPING_STACK = 3, /**< of the first thread */
  PINRAIL_MAPPING_SHARED_ANONYMOUS = 4,
  PINRAIL_MAPPING_SYSV = 5,
  PINRAIL_MAPPING_PRIVATE_FILE = 6,
  PINRAIL_MAPPING_SHARED_FILE = 7, /**< memfd, tmpfs and hugetlbfs too */
  PINRAIL_MAPPING_DEVICE = 8       /**< of a device file, or the kernel's own */
} pinrail_mapping_kind_t;

/** One line of /proc/self/maps. */
typedef struct pinrail_mapping {
  size_t size;
  uintptr_t base, end;
  uint64_t offset, device, inode; /**< of the file, if there is one; device as in stat */
  pinrail_mapping_kind_t kind;
} pinrail_mapping_t;

/** It sees events of system calls that code makes without the C library, too, as allocators of sanitizers do. */
enum { PINRAIL_MONITOR_ANY_CALLER = 0x1u };

typedef struct pinrail_monitor_ops {
  size_t size;
  /** Begins to report, through host->monitor_report_hook, and makes sure with real events that it works. */
  pinrail_status_t (*start)(void *component);
  /** Nothing is un-patched: afterwards its events just go nowhere. */
  void (*stop)(void *component);
  /**
   * Looks whether it still sees everything, and mends what can be mended; between start and stop, API context.
   * ERROR: it sees nothing any more, and has said so to host->monitor_blind. NULL: nothing can blind it.
   */
  pinrail_status_t (*check)(void *component);
  /**
   * PINRAIL_EVENT_*: what it sees wherever it happens, as its start found out; asked after a start that succeeded, and
   * again after it called host->monitor_blind. NULL: nothing.
   */
  uint32_t (*sees)(void *component);
  /**
   * What it sees besides of what happens to this mapping, which it begins to watch if it must; what it says holds until
   * an event touches the mapping. Called when a registration of it is about to be made that may be kept; any number of
   * calls may run together, no lock is held. NULL: nothing.
   */
  uint32_t (*cover)(void *component, const pinrail_mapping_t *mapping);
  /** PINRAIL_KIND_* bits of the memory that it watches. 0: host memory; without that bit host memory is not cached
   *  because of it. */
  uint32_t kinds;
  /** PINRAIL_MONITOR_* bits. */
  uint32_t flags;
} pinrail_monitor_ops_t;

/** How soon the gc thread shall drain. */
typedef enum pinrail_gc_when {
  PINRAIL_GC_SOON = 1, /**< 100 ms after the first such word */
  PINRAIL_GC_NOW = 2
} pinrail_gc_when_t;

/* ---- host ------------------------------------------------------------------------------------------------------ */

typedef enum pinrail_log_level {
  PINRAIL_LOG_ERROR = 0, /**< always shown */
  PINRAIL_LOG_WARN = 1,  /**< always shown */
  PINRAIL_LOG_INFO = 10, /**< shown from <framework>_<component>_verbose 10 on */
  PINRAIL_LOG_DEBUG = 50
} pinrail_log_level_t;

/** Fills a {name} of a help text. */
typedef struct pinrail_help_arg {
  const char *name;
  const char *value;
} pinrail_help_arg_t;

/** Services. Every component has a copy of its own, good from open() to close(); pass it as the first argument. */
struct pinrail_host {
  size_t size;  /**< sizeof(pinrail_host_t) of the library */
  uint32_t abi; /**< PINRAIL_HOST_ABI */
  uint32_t reserved;
  const void *self; /**< the library's own */

  /** The component's own parameter by its short name. NOT_FOUND if it declares none of that name. */
  pinrail_status_t (*param)(const pinrail_host_t *host, const char *name, pinrail_param_value_t *value_out);
  /** Any parameter, by its full name, with value, source and file. */
  pinrail_status_t (*param_info)(const pinrail_host_t *host, const char *full_name, pinrail_param_info_t *info_out);

  /** One line to stderr, with the component's name before it, if its verbosity allows. Not in hooks. */
  void (*log)(const pinrail_host_t *host, pinrail_log_level_t level, const char *line);
  /** A topic of the component's help catalogue. Said once per process for equal topic and arguments. Not in hooks. */
  void (*help)(const pinrail_host_t *host, const char *topic, const pinrail_help_arg_t *args, size_t arg_count);

  /**
   * Memory for one registration and a tail: zeroed but for state, which carries a fresh generation. counting says how
   * its references will be counted, as base/registration/references.h explains; the memory serves only such ones for ever.
   */
  pinrail_status_t (*registration_alloc)(const pinrail_host_t *host, size_t tail_size, pinrail_counting_t counting,
                                         pinrail_registration_t **reg_out);
  void (*registration_free)(const pinrail_host_t *host, pinrail_registration_t *reg);
  /** 64 bytes of the mpool component's own, 40 if references are counted per thread; zeroed when the registration was
   * made. Any context. */
  void *(*registration_area)(const pinrail_host_t *host, const pinrail_registration_t *reg);

  /**
   * References of count registrations, however they are counted, over all threads. 0 is sure, more is what was seen,
   * PINRAIL_REFERENCES_UNKNOWN that the barrier failed, of all of them or of none. One barrier for all of them; may be
   * called with locks up to rank "cache" held.
   */
  void (*count_references)(const pinrail_host_t *host, pinrail_registration_t *const *regs, size_t count,
                           pinrail_sum_t mode, int64_t *references_out);

  /** Before an index is destroyed: what threads have noted of its table of starts they know no more. Nobody is at its
   *  pool. */
  void (*forget_notes)(const pinrail_host_t *host, const pinrail_start_table_t *start_table);

  /** The process's clock of uses, see base/lru/epoch.h. */
  uint64_t *epoch;
  /** The process's line of GPU memory, see base/hit/allocation_table.h. */
  pinrail_start_bucket_t *gpu_bucket;
  /** Where registrations lie, by number, see base/registration/registration_arena.h. */
  char *const *chunks;

  /** Registrar calls of a pool. No lock may be held. */
  pinrail_status_t (*registrar_register)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread,
                                         const pinrail_register_request_t *request, pinrail_registration_t *reg);
  pinrail_status_t (*registrar_deregister)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread,
                                           pinrail_registration_t *reg, pinrail_reason_t reason);

  /** The index component that is named, or the best one. */
  pinrail_status_t (*rcache_create)(const pinrail_host_t *host, const char *name, uint32_t flags,
                                    pinrail_rcache_t *rcache_out);

  /**
   * hook is called with every range that is about to go away, in hook context, until unsubscribe returns; "everything" is
   * the range (0, UINTPTR_MAX). kinds: PINRAIL_KIND_* bits; only events of such memory are wanted: those that a monitor
   * reports which watches it, and all that the program reports. 0: all events. What makes a monitor of host memory blind
   * is no event of GPU memory.
   */
  pinrail_status_t (*monitor_subscribe)(const pinrail_host_t *host, uint32_t kinds,
                                        void (*hook)(void *arg, uintptr_t base, size_t length), void *arg,
                                        void **subscription_out);
  void (*monitor_unsubscribe)(const pinrail_host_t *host, void *subscription);
  /**
   * Whether host memory of some usual kind may be cached: 1 if a monitor was seen to work. why is set to the reason why
   * nothing, or not every kind, is; "" if all are.
   */
  int (*monitor_works)(const pinrail_host_t *host, const char **why_out);
  /**
   * Whether all that can make a registration of this range stale is seen: 1 if it may be kept. Makes the monitors watch
   * the range, so it is asked before the device is told, and after hooks can reach the request. No lock may be held.
   */
  int (*monitor_covers)(const pinrail_host_t *host, uintptr_t base, size_t length);

  /** For monitors: deliver an event to all subscribers that want memory of the kinds that this monitor watches. Hook
   *  context. */
  void (*monitor_report_hook)(const pinrail_host_t *host, uintptr_t base, size_t length);
  /**
   * For monitors: it sees less than before, until it is started again. Its sees() is asked which events are left; 0 or
   * no sees(): it sees nothing any more. why: for people. Not in hooks.
   */
  void (*monitor_blind)(const pinrail_host_t *host, const char *why);
  /**
   * For monitors that learn of an event only when the memory may be gone already: held before an event is taken from
   * the kernel, released after it was reported. Meanwhile no register or find is answered. Hook context.
   */
  void (*monitor_hold_hook)(const pinrail_host_t *host);
  void (*monitor_release_hook)(const pinrail_host_t *host);

  /**
   * For mpools: from now on the process's gc thread calls drain, with no lock held, when it was woken; and again later
   * as long as that returns 1: something dead is still held. every_ms: and at least so often, for what dies where it
   * cannot wake anybody; 0: only then. Ends with gc_leave, which waits for a drain under way.
   */
  pinrail_status_t (*gc_join)(const pinrail_host_t *host, int (*drain)(void *arg, pinrail_thread_t *thread), void *arg,
                              uint32_t every_ms, void **member_out);
  void (*gc_leave)(const pinrail_host_t *host, void *member);
  /** Wakes the gc thread, if there is one. Hook context; a system call only where it sleeps, or shall hurry. */
  void (*gc_wake_hook)(const pinrail_host_t *host, pinrail_gc_when_t when);

  /**
   * For mpools that need a second registrar's functions: the component of that name, until it is closed. Its table is
   * called directly. NOT_FOUND: there is none of that name; else what it says.
   */
  pinrail_status_t (*registrar_open)(const pinrail_host_t *host, const char *name,
                                     pinrail_bound_registrar_t **registrar_out, const pinrail_registrar_t **table_out);
  void (*registrar_close)(const pinrail_host_t *host, pinrail_bound_registrar_t *registrar);

  /**
   * As registrar_deregister, but the device is not told, for it has lost what it knew: only what the library and
   * tail_init() made of the registration goes. reason: INVALIDATED if its memory may be somebody else's.
   */
  void (*registrar_abandon)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread, pinrail_registration_t *reg,
                            pinrail_reason_t reason);
  /** For mpools, of each registrar that they have: the process was restarted. SUCCESS if it need not know. No lock may be
   *  held. */
  pinrail_status_t (*registrar_restart)(pinrail_bound_registrar_t *registrar, pinrail_thread_t *thread);

  /**
   * Of a dead registration that is counted per thread. 1: nobody holds it, and the caller is the one who gives it back.
   * 0: it is held, or another one's to give back, or (DROPPED) was not said to be HELD yet. -1: nothing was dropped
   * (DROP), for it has no reference. From HELD on the first word of its area is the library's. May be called with locks
   * up to rank "cache" held.
   */
  int (*settle_dead)(const pinrail_host_t *host, pinrail_handle_t handle, pinrail_dead_t what);
  /** Whether new registrations may be counted per thread: 0 once a barrier has failed. */
  int (*counts_per_thread)(const pinrail_host_t *host);

  /**
   * For locks that hooks take. A signal handler may unmap memory on a thread that holds such a lock, and its hook must not
   * wait for it. So a component raises the calling thread's depth before it asks for the lock, and lowers it after it has
   * released it; what was waiting when the depth has come to 0 it has delivered. Both in any context. See
   * base/sync/lock.h.
   */
  pinrail_hook_depth_t *(*depth_hook)(void);
  void (*deliver_deferred_hook)(void);
};

#ifdef __cplusplus
}
#endif

#endif
