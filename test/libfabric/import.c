// SPDX-License-Identifier: BSD-3-Clause
// import.c - libfabric's provider verbs, whose cache hears of memory events from Pinrail.
//   import            a cached registration is found again; after munmap + mmap at its address it is a new one
//   import --silent   Pinrail's monitor says nothing: then the stale registration is found, or this test is blind
//   import --uffd     under uffd, which watches the memory of pools alone, nothing is imported; needs no device
//   import --kinds    memory of which not all events are seen is not kept; needs no device
// Exit status 0: as said; 1: not so; 77: no device, or no userfaultfd.
#include <dlfcn.h>
#include <pinrail/pinrail.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "contrib/libfabric/pinrail_libfabric.h"

enum { kBytes = 256 * 1024, kRounds = 200 };

static void stop_unless(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "FAILED: %s\n", what);
  exit(1);
}

// Before that libfabric 1.17 refuses a second import: a list of its own is not there yet.
static void start_libfabric(void) {
  struct fi_info* info = NULL;
  if (fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, NULL, &info) == 0) fi_freeinfo(info);
}

static struct fid_domain* open_domain(struct fid_fabric** fabric_out) {
  struct fi_info *hints = fi_allocinfo(), *info = NULL;
  struct fid_domain* domain = NULL;
  hints->ep_attr->type = FI_EP_MSG;
  hints->caps = FI_MSG | FI_RMA;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup("verbs");
  if (fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info) != 0) {
    printf("SKIP: libfabric finds no device for its provider verbs\n");
    exit(77);
  }
  stop_unless(fi_fabric(info->fabric_attr, fabric_out, NULL) == 0, "fi_fabric");
  stop_unless(fi_domain(*fabric_out, info, &domain, NULL) == 0, "fi_domain");
  fi_freeinfo(info);
  fi_freeinfo(hints);
  return domain;
}

static uint64_t key_of(struct fid_domain* domain, void* buffer) {
  struct fid_mr* mr;
  stop_unless(fi_mr_reg(domain, buffer, kBytes, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL) == 0, "fi_mr_reg");
  const uint64_t key = fi_mr_key(mr);
  stop_unless(fi_close(&mr->fid) == 0, "fi_close of a registration");
  return key;
}

static void* map_at(void* at) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at != NULL ? MAP_FIXED_NOREPLACE : 0);
  void* const got = mmap(at, kBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  stop_unless(got != MAP_FAILED && (at == NULL || got == at), "mmap");
  memset(got, 1, kBytes);
  return got;
}

// How often the address had the same registration after its memory had been replaced.
static int stale_rounds(struct fid_domain* domain) {
  void* buffer = map_at(NULL);
  int stale = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t key = key_of(domain, buffer);
    stop_unless(key_of(domain, buffer) == key, "the cache finds what it has");
    munmap(buffer, kBytes);
    buffer = map_at(buffer);
    stale += key_of(domain, buffer) == key;
  }
  munmap(buffer, kBytes);
  return stale;
}

// Nothing would watch libfabric's memory. Not every kernel lets this process have a userfaultfd.
static int refuse_under_uffd(void) {
  const pinrail_setting_t settings[] = {{"monitor", "uffd"}, {"monitor_never", "guard_install,shmat_over"}};
  const pinrail_init_options_t options = {sizeof(options), NULL, 0, settings, 2};
  if (pinrail_init(&options) != PINRAIL_SUCCESS) {
    printf("SKIP: this process may have no userfaultfd\n");
    return 77;
  }
  stop_unless(pinrail_libfabric_import() == PINRAIL_ERR_NOT_AVAILABLE, "uffd watches the memory of pools alone");
  stop_unless(pinrail_finalize() == PINRAIL_SUCCESS, "pinrail_finalize after uffd");
  return 0;
}

// What libfabric is given.
static struct fid_mem_monitor* imported;
static int (*own_bind)(struct fid*, struct fid*, uint64_t);

static int note_bind(struct fid* fid, struct fid* monitor, uint64_t flags) {
  imported = (struct fid_mem_monitor*)monitor;
  return own_bind(fid, monitor, flags);
}

// In front of libfabric's.
PINRAIL_API int fi_open(uint32_t version, const char* name, void* attr, size_t length, uint64_t flags,
                        struct fid** fid_out, void* context) {
  int (*open)(uint32_t, const char*, void*, size_t, uint64_t, struct fid**, void*) = NULL;
  static struct fi_ops ops;
  *(void**)&open = dlsym(RTLD_NEXT, "fi_open");
  const int result = open(version, name, attr, length, flags, fid_out, context);
  if (result != 0) return result;
  ops = *(*fid_out)->ops;
  own_bind = ops.bind;
  ops.bind = note_bind;
  (*fid_out)->ops = &ops;
  return 0;
}

static int refuse_unseen_kinds(void) {
  const pinrail_setting_t settings[] = {{"monitor", "patcher"}, {"monitor_strict", "yes"}};
  const pinrail_init_options_t options = {sizeof(options), NULL, 0, settings, 2};
  void* const shared = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void* const own = map_at(NULL);
  stop_unless(shared != MAP_FAILED, "mmap of shared memory");
  stop_unless(pinrail_init(&options) == PINRAIL_SUCCESS, "pinrail_init");
  stop_unless(pinrail_libfabric_import() == PINRAIL_SUCCESS && imported != NULL, "import");
  stop_unless(imported->export_ops->subscribe(imported, own, kBytes) == 0, "private memory is kept");
  stop_unless(imported->export_ops->subscribe(imported, shared, kBytes) != 0,
              "what another process may cut is not kept");
  stop_unless(pinrail_libfabric_release() == PINRAIL_SUCCESS, "release");
  stop_unless(pinrail_finalize() == PINRAIL_SUCCESS, "pinrail_finalize");
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--uffd") == 0) return refuse_under_uffd();
  if (argc > 1 && strcmp(argv[1], "--kinds") == 0) return refuse_unseen_kinds();
  const int silent = argc > 1 && strcmp(argv[1], "--silent") == 0;
  const pinrail_setting_t settings[] = {{"monitor", silent ? "external" : "patcher"}};
  const pinrail_init_options_t options = {sizeof(options), NULL, 0, settings, 1};
  struct fid_fabric* fabric;
  pinrail_libfabric_stats_t stats;
  setenv("FI_MR_CACHE_MAX_COUNT", "1024", 1);
  stop_unless(pinrail_libfabric_import() == PINRAIL_ERR_NOT_AVAILABLE, "before init there is no monitor");
  stop_unless(pinrail_libfabric_release() == PINRAIL_ERR_BAD_PARAM, "nothing to release");
  stop_unless(pinrail_init(&options) == PINRAIL_SUCCESS, "pinrail_init");
  stop_unless(pinrail_libfabric_import() == PINRAIL_SUCCESS, "import");
  stop_unless(pinrail_libfabric_import() == PINRAIL_ERR_BAD_PARAM, "a second import");
  start_libfabric();
  stop_unless(pinrail_libfabric_release() == PINRAIL_SUCCESS, "release before a domain is opened");
  stop_unless(pinrail_libfabric_import() == PINRAIL_SUCCESS, "an import after a release");
  struct fid_domain* const domain = open_domain(&fabric);
  const int stale = stale_rounds(domain);
  pinrail_libfabric_read_stats(&stats);
  printf("%d of %d registrations were stale; %llu subscriptions, %llu lookups, %llu events passed on\n", stale, kRounds,
         (unsigned long long)stats.subscriptions, (unsigned long long)stats.lookups,
         (unsigned long long)stats.notified);
  stop_unless(stats.subscriptions != 0 && stats.lookups != 0, "libfabric asked Pinrail");
  stop_unless(silent ? stale == kRounds : stale == 0, silent ? "all are stale without events" : "none is stale");
  stop_unless(pinrail_libfabric_release() == PINRAIL_ERR_BAD_PARAM, "a release while libfabric's cache is open");
  fi_close(&domain->fid);
  fi_close(&fabric->fid);
  stop_unless(pinrail_libfabric_release() == PINRAIL_SUCCESS, "release");
  stop_unless(pinrail_finalize() == PINRAIL_SUCCESS, "pinrail_finalize");
  printf("ok\n");
  return 0;
}
