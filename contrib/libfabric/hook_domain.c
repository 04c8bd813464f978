// SPDX-License-Identifier: BSD-3-Clause
// Domains: which of them are cached, and their pools.
#include <pthread.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contrib/libfabric/hook.h"

// FI_MR_BASIC, which stands for virtual addresses, allocated memory and the provider's keys; newer headers warn of it.
enum { kBasicMode = 1 << 0 };
// FI_REG_MR, likewise: registrations complete by events.
static const uint64_t kRegistersByEvent = UINT64_C(1) << 59;

static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static hooked_domain_t* open_domains;  // open_mutex
static pid_t opener;                   // open_mutex; the process to which they belong

static void add_open(hooked_domain_t* hooked) {
  pthread_mutex_lock(&open_mutex);
  opener = getpid();
  hooked->next = open_domains;
  open_domains = hooked;
  pthread_mutex_unlock(&open_mutex);
}

static void remove_open(const hooked_domain_t* hooked) {
  pthread_mutex_lock(&open_mutex);
  hooked_domain_t** at = &open_domains;
  while (*at != hooked) at = &(*at)->next;
  *at = hooked->next;
  pthread_mutex_unlock(&open_mutex);
}

// Why a domain cannot be cached; NULL: it can.
static const char* obstacle(const struct fi_info* info) {
  const uint64_t mode = info->domain_attr != NULL ? (uint64_t)info->domain_attr->mr_mode : 0;
  if ((mode & kBasicMode) == 0) {
    if ((mode & FI_MR_PROV_KEY) == 0) return "its keys are the program's (no FI_MR_PROV_KEY)";
    if ((mode & FI_MR_VIRT_ADDR) == 0) return "its peers address regions by offsets (no FI_MR_VIRT_ADDR)";
  }
  if ((mode & (FI_MR_ENDPOINT | FI_MR_RMA_EVENT)) != 0) return "its regions are bound to endpoints or counters";
  return NULL;
}

// Peers of ofi_rxm and others open many domains: once per provider's name is enough.
static void name_passed_through(const char* provider, const char* why) {
  static _Atomic(uint64_t) told;  // one bit of a hash for each name
  uint64_t hash = 0;
  for (const char* at = provider; *at != '\0'; ++at) hash = hash * 31 + (unsigned char)*at;
  const uint64_t bit = UINT64_C(1) << (hash % 64);
  if ((atomic_fetch_or(&told, bit) & bit) != 0) return;
  fprintf(stderr, "pinrail: registrations of provider %s are passed through: %s.\n", provider, why);
}

static bool make_pool(hooked_domain_t* hooked) {
  const pinrail_registrar_t table = registrar_of_domain(hooked);
  const pinrail_registrar_choice_t registrar = {.table = &table};
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  if (!shares()) options.flags = PINRAIL_POOL_EXACT;
  return pinrail_mpool_create("grdma", &registrar, "libfabric", &options, &hooked->pool) == PINRAIL_SUCCESS;
}

static void put_ours(hooked_domain_t* hooked) {
  hooked->domain->mr = hooked->hooked_mr;
  hooked->domain->fid.ops = hooked->hooked_ops;
}
static void put_back(hooked_domain_t* hooked) {
  hooked->domain->mr = hooked->own_mr;
  hooked->domain->fid.ops = hooked->own_ops;
}

static void discard(hooked_domain_t* hooked) {
  free_table(hooked->hooked_mr);
  free_table(hooked->hooked_ops);
  free(hooked);
}

static void print_stats(const hooked_domain_t* hooked, const pinrail_mpool_stats_t* stats) {
  fprintf(stderr, "pinrail: %s: %llu hits, %llu misses, %llu registrations by the provider, %llu invalidated\n",
          hooked->provider, (unsigned long long)stats->hits, (unsigned long long)stats->misses,
          (unsigned long long)atomic_load(&hooked->device_calls), (unsigned long long)stats->invalidations);
}

// Regions that the program still holds keep a domain open, as they do without a cache. The pool is not asked: it would
// tell the program about pools.
static int empty_pool(hooked_domain_t* hooked) {
  pinrail_mpool_stats_t stats = {.size = sizeof(stats)};
  if (hooked->pool == NULL) return 0;
  if (atomic_load(&hooked->regions) != 0) return -FI_EBUSY;
  (void)pinrail_mpool_read_stats(hooked->pool, &stats);
  if (pinrail_mpool_destroy(hooked->pool, 0) != PINRAIL_SUCCESS) return -FI_EBUSY;
  hooked->pool = NULL;
  if (prints_stats()) print_stats(hooked, &stats);
  return 0;
}

static int close_domain(struct fid* fid) {
  hooked_domain_t* const hooked = table_owner(fid->ops);
  int result = empty_pool(hooked);
  if (result != 0) return result;
  put_back(hooked);
  result = fid->ops->close(fid);
  if (result == 0) {
    remove_open(hooked);
    discard(hooked);
    return 0;
  }
  put_ours(hooked);  // it is in use, and stays open
  (void)make_pool(hooked);
  return result;
}

bool regions_are_open(void) {
  bool found = false;
  pthread_mutex_lock(&open_mutex);
  for (const hooked_domain_t* each = open_domains; each != NULL; each = each->next)
    found = found || atomic_load(&each->regions) != 0;
  pthread_mutex_unlock(&open_mutex);
  return found;
}

// A child has the list of its parent, which prints its own figures.
void print_stats_of_open_domains(void) {
  pthread_mutex_lock(&open_mutex);
  for (const hooked_domain_t* each = opener == getpid() ? open_domains : NULL; each != NULL; each = each->next) {
    pinrail_mpool_stats_t stats = {.size = sizeof(stats)};
    if (each->pool != NULL && pinrail_mpool_read_stats(each->pool, &stats) == PINRAIL_SUCCESS)
      print_stats(each, &stats);
  }
  pthread_mutex_unlock(&open_mutex);
}

static int bind_domain(struct fid* fid, struct fid* other, uint64_t flags) {
  hooked_domain_t* const hooked = table_owner(fid->ops);
  if ((flags & kRegistersByEvent) != 0) atomic_store(&hooked->completes_by_event, true);
  return hooked->own_ops->bind(fid, other, flags);
}

void hook_domain(struct fid_domain* domain, const struct fi_info* info, const char* provider) {
  const char* const why = obstacle(info);
  if (why != NULL) {
    name_passed_through(provider, why);
    return;
  }
  hooked_domain_t* const hooked = calloc(1, sizeof(*hooked));
  if (hooked == NULL) return;
  hooked->domain = domain;
  hooked->own_mr = domain->mr;
  hooked->own_ops = domain->fid.ops;
  hooked->hooked_mr = copy_table(domain->mr, hooked);
  hooked->hooked_ops = copy_table(domain->fid.ops, hooked);
  hooked->mr_mode = (uint64_t)info->domain_attr->mr_mode;
  hooked->threads = info->domain_attr->threading == FI_THREAD_SAFE ? PINRAIL_THREAD_CONCURRENT : PINRAIL_THREAD_CALLER;
  snprintf(hooked->provider, sizeof(hooked->provider), "%s", provider);
  if (hooked->hooked_mr == NULL || hooked->hooked_ops == NULL || !make_pool(hooked)) {
    name_passed_through(provider, "Pinrail has no pool for it");
    discard(hooked);
    return;
  }
  fill_mr_table(hooked->hooked_mr);
  hooked->hooked_ops->close = close_domain;
  hooked->hooked_ops->bind = bind_domain;
  add_open(hooked);
  put_ours(hooked);
}
