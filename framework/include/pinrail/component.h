/* SPDX-License-Identifier: BSD-3-Clause
 * component.h - what the author of a registrar or of a monitor fills in: one descriptor and one table of functions.
 *
 * Authors of indexes read component_rcache.h too, authors of pools component_mpool.h.
 *
 * A component is an ELF shared object <framework>_<name>.so that exports one symbol, `pinrail_component`. It links
 * against nothing of Pinrail: it gets services in the host table that open() receives. It keeps no mutable globals,
 * because two copies of Pinrail in one process may load the same file; its state belongs to its context.
 *
 * A function has one of three contexts: start-up (open, close, create, destroy), hook (its name ends in _hook), and
 * API (all others). Code in hook context runs inside munmap or free(): it must not allocate, free or log, and must not
 * take a lock that some thread holds while it does one of these.
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

/** One number per framework. It is raised when a table changes so that an old binary would no longer work. */
enum {
  PINRAIL_HOST_ABI = 2,
  PINRAIL_MPOOL_ABI = 4,
  PINRAIL_RCACHE_ABI = 8,
  PINRAIL_REGISTRAR_ABI = 2,
  PINRAIL_MONITOR_ABI = 2
};

/** The services of the library; open() receives them. */
typedef struct pinrail_host pinrail_host_t;

/** The descriptor. Its first four fields never move: a loader of another version compares them. */
typedef struct pinrail_component {
  size_t size;         /**< sizeof(pinrail_component_t) */
  uint32_t abi;        /**< PINRAIL_<FRAMEWORK>_ABI */
  int32_t priority;    /**< highest wins; below 0: only when named in the framework's selection list */
  char framework[16];  /**< "mpool", "rcache", "registrar", "monitor" */
  char name[32];       /**< for example "verbs" */
  const char *version; /**< of the component, for listings */
  const char *help;    /**< one line: when to choose it */
  /**
   * The texts that host->help() shows, or NULL. A text begins with a line "[topic]" and ends before the next such line
   * or at the end of the string; empty lines at its ends are left out. In it, {name} stands for the argument of that
   * name; other text is shown as it is. The form of Pinrail's own texts: three lines that begin with "What happened",
   * "What follows" and "What to do".
   */
  const char *help_catalogue;
  const pinrail_param_t *params;       /**< or NULL */
  size_t param_count;                  /**< entries of params */
  const char *const *synonym_prefixes; /**< old families of parameter names, {"rcache_grdma_", NULL}; or NULL */

  /** Runs at start-up; parameters can be read. NOT_AVAILABLE: this machine lacks the device or driver. */
  pinrail_status_t (*open)(const pinrail_host_t *host, void **context_out);
  void (*close)(void *context); /**< ends what open() made; nothing of the component is called afterwards */

  const void *ops; /**< the framework's table; it starts with its size */
} pinrail_component_t;

/** Exported by a shared object; a static build renames it, so that many components fit into one library. */
#ifndef PINRAIL_COMPONENT_SYMBOL
#define PINRAIL_COMPONENT_SYMBOL pinrail_component
#endif

/**
 * What Pinrail knows of the calling thread. It is made on the thread's first call and passed to components, which pass
 * it on to services. Its content is private.
 */
typedef struct pinrail_thread pinrail_thread_t;

/* ---- registrar ------------------------------------------------------------------------------------------------- */

/** The table of a component of the framework registrar. */
typedef struct pinrail_registrar_ops {
  size_t size; /**< sizeof(pinrail_registrar_ops_t) */
  /**
   * Makes one registrar for one pool. native is the embedder's (struct ibv_pd * for verbs) or NULL.
   * NOT_AVAILABLE: this machine or this user cannot have it; selection goes on with the next one.
   */
  pinrail_status_t (*create)(void *component, void *native, pinrail_registrar_t *registrar_out);
  void (*destroy)(void *component, pinrail_registrar_t *registrar); /**< ends what create() made */
} pinrail_registrar_ops_t;

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
  PINRAIL_EVENT_TRUNCATE = 0x1000u,  /**< ftruncate, truncate, open with O_TRUNC, creat */
  PINRAIL_EVENT_REMAP_FILE_PAGES = 0x2000u,
  /** What makes a file system replace a page of a file on disk that is mapped shared: a write with O_DIRECT or
   *  RWF_DONTCACHE, a clone, a network file system that finds another version on the server. */
  PINRAIL_EVENT_DIRECT_WRITE = 0x4000u,
  /** A driver exchanges the pages of a mapping of its device by itself, as for CUDA's managed memory. */
  PINRAIL_EVENT_DRIVER_MOVE = 0x8000u,
  PINRAIL_EVENTS_ALL = 0xffffu
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
  PINRAIL_MAPPING_SHARED_FILE = 7, /**< of memfd, tmpfs or hugetlbfs */
  PINRAIL_MAPPING_DEVICE = 8,      /**< of a character device, or the kernel's own */
  PINRAIL_MAPPING_DISK_FILE = 9    /**< shared, of a file of any other file system, or of a block device */
} pinrail_mapping_kind_t;

/** One line of /proc/self/maps. */
typedef struct pinrail_mapping {
  size_t size;                 /**< sizeof(pinrail_mapping_t) */
  uintptr_t base;              /**< first byte */
  uintptr_t end;               /**< one past the last byte */
  uint64_t offset;             /**< of base in the file, in bytes; 0 if there is no file */
  uint64_t device;             /**< of the file, as in stat; 0 if there is none */
  uint64_t inode;              /**< of the file; 0 if there is none */
  pinrail_mapping_kind_t kind; /**< which events can happen to it */
  uint32_t is_writable;        /**< 1: the process may write there */
} pinrail_mapping_t;

enum {
  /** It sees events of system calls that code makes without the C library, too, as allocators of sanitizers do. */
  PINRAIL_MONITOR_ANY_CALLER = 0x1u,
  /** It reports each event that sees() names a second time, when the kernel has acted. Pools that register what is
   *  mapped without being asked for it (mrall) need that. */
  PINRAIL_MONITOR_AFTERWARDS = 0x2u
};

/** The table of a component of the framework monitor. */
typedef struct pinrail_monitor_ops {
  size_t size; /**< sizeof(pinrail_monitor_ops_t) */
  /** Begins to report, through host->monitor_report_hook, and makes sure with real events that it works. */
  pinrail_status_t (*start)(void *component);
  /** Called once after each start that succeeded. Nothing is un-patched: afterwards its events just go nowhere. */
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

/* ---- host ------------------------------------------------------------------------------------------------------ */

/** How urgent a line of a log is. */
typedef enum pinrail_log_level {
  PINRAIL_LOG_ERROR = 0, /**< always shown */
  PINRAIL_LOG_WARN = 1,  /**< always shown */
  PINRAIL_LOG_INFO = 10, /**< shown from <framework>_<component>_verbose 10 on */
  PINRAIL_LOG_DEBUG = 50
} pinrail_log_level_t;

/** Fills a {name} of a help text. */
typedef struct pinrail_help_arg {
  const char *name;  /**< without braces */
  const char *value; /**< takes its place */
} pinrail_help_arg_t;

/** The locks of one thread that hooks may take. */
typedef struct pinrail_hook_depth {
  uint32_t depth;                        /**< how many of them the thread holds or waits for */
  uint32_t waiting;                      /**< how many memory events were postponed because of that */
  void (*while_waiting_hook)(void *arg); /**< not NULL in a thread for which the holder of such a lock may wait (a
                                              monitor sets it); that thread does not sleep for a lock */
  void *waiting_arg;                     /**< argument of while_waiting_hook */
  uint32_t gates; /**< how often the thread stops register and find at present (monitor_hold_hook, or an event that was
                       postponed); while it is not 0, a hook must not sleep */
} pinrail_hook_depth_t;

/** Services. Each component has a copy of its own from open() to close(); it passes that as the first argument. */
struct pinrail_host {
  size_t size;       /**< sizeof(pinrail_host_t) of the library */
  uint32_t abi;      /**< PINRAIL_HOST_ABI */
  uint32_t reserved; /**< 0 */
  const void *self;  /**< the library's own */

  /** Reads the component's own parameter by its short name. NOT_FOUND: it declares none of that name. */
  pinrail_status_t (*param)(const pinrail_host_t *host, const char *name, pinrail_param_value_t *value_out);
  /** Reads any parameter by its full name, with value, source and file. */
  pinrail_status_t (*param_info)(const pinrail_host_t *host, const char *full_name, pinrail_param_info_t *info_out);

  /** Writes one line to stderr after the component's name, if its verbosity allows. Not in hooks. */
  void (*log)(const pinrail_host_t *host, pinrail_log_level_t level, const char *line);
  /** Shows a topic of the component's help catalogue, once per process for equal topic and arguments. Not in hooks. */
  void (*help)(const pinrail_host_t *host, const char *topic, const pinrail_help_arg_t *args, size_t arg_count);

  /**
   * Calls hook in hook context with every range that is about to go away, until unsubscribe returns. The range
   * (0, UINTPTR_MAX) means everything. kinds: PINRAIL_KIND_* bits of the memory whose events are wanted; 0: all events.
   * Events that the program itself reports always arrive. A monitor of host memory that becomes blind causes no event
   * of GPU memory.
   */
  pinrail_status_t (*monitor_subscribe)(const pinrail_host_t *host, uint32_t kinds,
                                        void (*hook)(void *arg, uintptr_t base, size_t length), void *arg,
                                        void **subscription_out);
  /** Ends a subscription, and waits for its calls in flight. */
  void (*monitor_unsubscribe)(const pinrail_host_t *host, void *subscription);
  /**
   * Returns 1 if a monitor works, so that host memory of some usual kind may be cached. why_out: the reason why nothing,
   * or not every kind, may be cached; "" if every kind may. why_out may be NULL.
   */
  int (*monitor_works)(const pinrail_host_t *host, const char **why_out);
  /**
   * Returns 1 if the monitors see all that can make a registration of this range stale: then it may be cached. The call
   * makes the monitors watch the range. So call it before the device call, and after hooks can find the request. No
   * lock may be held.
   */
  int (*monitor_covers)(const pinrail_host_t *host, uintptr_t base, size_t length);

  /** For monitors: delivers an event to all subscribers that want memory of the kinds that this monitor watches; those
   *  of host memory get whole pages. Hook context. */
  void (*monitor_report_hook)(const pinrail_host_t *host, uintptr_t base, size_t length);
  /**
   * For monitors: it sees other events than before. The library asks its sees() which; without sees(), or if that
   * returns 0, it sees nothing any more. What is cached of its memory dies. why: for people; "" if it sees all that it
   * saw at its start. Not in hooks.
   */
  void (*monitor_blind)(const pinrail_host_t *host, const char *why);
  /**
   * For monitors that learn of an event only when the memory may be gone already: hold before the event is taken from
   * the kernel, release after it was reported. Register and find calls wait meanwhile. Hook context.
   */
  void (*monitor_hold_hook)(const pinrail_host_t *host);
  void (*monitor_release_hook)(const pinrail_host_t *host); /**< see monitor_hold_hook */

  /**
   * For locks that hooks take. A signal handler may unmap memory on a thread that holds such a lock, and the hook must
   * not wait for that lock. So the component counts. Before it locks, it calls depth_hook() and adds 1 to depth; if
   * there is a while_waiting_hook, it does not sleep for the lock but tries until it has it, and calls that with
   * waiting_arg after each failure. After it has unlocked, it subtracts 1 from the same depth (unless that is 0 already,
   * as in a forked child), and if depth is 0 then and waiting is not, it calls deliver_deferred_hook(). Compiler barriers
   * (atomic_signal_fence) keep that order. Any context.
   */
  pinrail_hook_depth_t *(*depth_hook)(void);
  void (*deliver_deferred_hook)(void); /**< see depth_hook */

  /** For indexes and pools: references and states of registrations; component_rcache.h. */
  const struct pinrail_registration_services *registrations;
  /** For pools: registrars, indexes and the gc thread; component_mpool.h. */
  const struct pinrail_pool_services *pools;

  /**
   * Returns a table of services that is not part of this interface, or NULL if the library does not have that name in
   * that version. Pinrail's own components use this; a component must work without.
   */
  const void *(*extension)(const pinrail_host_t *host, const char *name, uint32_t version);
};

#ifdef __cplusplus
}
#endif

#endif
