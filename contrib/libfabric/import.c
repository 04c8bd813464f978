// SPDX-License-Identifier: BSD-3-Clause
// The monitor that libfabric imports, on Pinrail's.
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "contrib/libfabric/pinrail_libfabric.h"
#include "pinrail/pinrail.h"

static struct fid* cache;  // libfabric's "mr_cache", while it is open
static pinrail_subscription_t* subscription;
static atomic_ullong subscriptions, lookups, notified;

// In a hook. libfabric's notify() takes a lock of its own and looks its tree through; it knows that it is called from
// inside of allocators.
static void pass_on(void* arg, void* addr, size_t length) {
  struct fid_mem_monitor* const monitor = arg;
  atomic_fetch_add_explicit(&notified, 1, memory_order_relaxed);  // a figure
  monitor->import_ops->notify(monitor, addr, length);
}

// By now libfabric has filled import_ops.
static int start(struct fid_mem_monitor* monitor) {
  if (subscription != NULL) return 0;
  return pinrail_monitor_subscribe(pass_on, monitor, &subscription) == PINRAIL_SUCCESS ? 0 : -FI_ENOSYS;
}

static void stop(struct fid_mem_monitor* monitor) {
  (void)monitor;
  pinrail_monitor_unsubscribe(subscription);
  subscription = NULL;
}

// Every event of the process is passed on, so that single ranges need not be remembered. The range is asked about
// nevertheless: of some kinds of memory not all events are seen, and those that name a file come for such ranges alone.
// libfabric does not keep what is refused here.
static int subscribe(struct fid_mem_monitor* monitor, const void* addr, size_t length) {
  (void)monitor;
  atomic_fetch_add_explicit(&subscriptions, 1, memory_order_relaxed);  // a figure
  return pinrail_monitor_sees_all_memory() && pinrail_monitor_covers(addr, length) ? 0 : -FI_ENOSYS;
}

static void unsubscribe(struct fid_mem_monitor* monitor, const void* addr, size_t length) {
  (void)monitor, (void)addr, (void)length;
}

// False makes libfabric register anew. It is asked at each of its hits.
static bool valid(struct fid_mem_monitor* monitor, const void* addr, size_t length) {
  (void)monitor, (void)addr, (void)length;
  atomic_fetch_add_explicit(&lookups, 1, memory_order_relaxed);  // a figure
  return pinrail_monitor_sees_all_memory() != 0;
}

static int close_nothing(struct fid* fid) {
  (void)fid;
  return 0;
}

static struct fi_ops_mem_monitor export_ops = {.size = sizeof(export_ops),
                                               .start = start,
                                               .stop = stop,
                                               .subscribe = subscribe,
                                               .unsubscribe = unsubscribe,
                                               .valid = valid};
static struct fi_ops fid_ops = {.size = sizeof(fid_ops), .close = close_nothing};
static struct fid_mem_monitor pinrail_monitor = {.fid = {.fclass = FI_CLASS_MEM_MONITOR, .ops = &fid_ops},
                                                 .export_ops = &export_ops};

pinrail_status_t pinrail_libfabric_import(void) {
  struct fid* opened = NULL;
  if (cache != NULL) return PINRAIL_ERR_BAD_PARAM;
  if (!pinrail_monitor_sees_all_memory()) return PINRAIL_ERR_NOT_AVAILABLE;
  if (fi_open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &opened, NULL) != 0) return PINRAIL_ERR_NOT_AVAILABLE;
  if (fi_import_fid(opened, &pinrail_monitor.fid, 0) != 0) {
    fi_close(opened);
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  cache = opened;
  return PINRAIL_SUCCESS;
}

void pinrail_libfabric_read_stats(pinrail_libfabric_stats_t* stats_out) {
  stats_out->subscriptions = atomic_load(&subscriptions);
  stats_out->lookups = atomic_load(&lookups);
  stats_out->notified = atomic_load(&notified);
}

pinrail_status_t pinrail_libfabric_release(void) {
  if (cache == NULL || subscription != NULL) return PINRAIL_ERR_BAD_PARAM;
  fi_close(&pinrail_monitor.fid);  // libfabric has put its own function there, which undoes the import
  fi_close(cache);
  cache = NULL;
  return PINRAIL_SUCCESS;
}
