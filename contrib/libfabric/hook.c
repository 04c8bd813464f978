// SPDX-License-Identifier: BSD-3-Clause
// The provider's entry, and the tables of fabrics. libfabric takes a provider without getinfo for a hook, loads it from
// FI_PROVIDER_PATH, and calls its fabric() for each fabric that the program or another provider opens.
#include "contrib/libfabric/hook.h"

#include <pthread.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HAS_FIELD(table, field) \
  ((table)->size >= offsetof(__typeof__(*(table)), field) + sizeof((table)->field) && (table)->field != NULL)

typedef struct hooked_fabric {
  struct fi_ops_fabric* own_fabric;
  struct fi_ops* own_ops;
  char provider[32];
} hooked_fabric_t;

static struct fi_provider provider;
static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool started;  // start_mutex
static atomic_bool is_over;

void* copy_table(const void* table, void* owner) {
  size_t size;
  memcpy(&size, table, sizeof(size));
  void** const block = malloc(sizeof(void*) + size);
  if (block == NULL) return NULL;
  *block = owner;
  return memcpy(block + 1, table, size);
}
void* table_owner(const void* table) { return ((void* const*)table)[-1]; }
void free_table(void* table) {
  if (table != NULL) free((void**)table - 1);
}

bool providers_are_gone(void) { return atomic_load(&is_over); }

// Read at the start, because libfabric forgets parameters before it cleans hooks up.
static bool stats_wanted, sharing_wanted;

bool prints_stats(void) { return stats_wanted; }
bool shares(void) { return sharing_wanted; }

static bool is_set(const char* parameter) {
  int value = 0;
  return fi_param_get_bool(&provider, parameter, &value) == 0 && value != 0;
}

static int open_domain(struct fid_fabric* fabric, struct fi_info* info, struct fid_domain** domain, void* context) {
  const hooked_fabric_t* const hooked = table_owner(fabric->ops);
  const int result = hooked->own_fabric->domain(fabric, info, domain, context);
  if (result == 0) hook_domain(*domain, info, hooked->provider);
  return result;
}

static int open_domain2(struct fid_fabric* fabric, struct fi_info* info, struct fid_domain** domain, uint64_t flags,
                        void* context) {
  const hooked_fabric_t* const hooked = table_owner(fabric->ops);
  const int result = hooked->own_fabric->domain2(fabric, info, domain, flags, context);
  if (result == 0) hook_domain(*domain, info, hooked->provider);
  return result;
}

static int close_fabric(struct fid* fid) {
  struct fid_fabric* const fabric = (struct fid_fabric*)fid;
  hooked_fabric_t* const hooked = table_owner(fid->ops);
  struct fi_ops_fabric* const fabric_table = fabric->ops;
  struct fi_ops* const ops = fid->ops;
  fabric->ops = hooked->own_fabric;
  fid->ops = hooked->own_ops;
  const int result = fid->ops->close(fid);
  if (result != 0) {  // it is in use, and stays open
    fabric->ops = fabric_table;
    fid->ops = ops;
    return result;
  }
  free_table(fabric_table);
  free_table(ops);
  free(hooked);
  return 0;
}

static bool start(void) {
  pthread_mutex_lock(&start_mutex);
  if (!started) {
    stats_wanted = is_set("stats");
    sharing_wanted = is_set("share");
    started = pinrail_init(NULL) == PINRAIL_SUCCESS;
  }
  const bool result = started;
  pthread_mutex_unlock(&start_mutex);
  if (!result) fprintf(stderr, "pinrail: Pinrail does not start; FI_HOOK=pinrail does nothing.\n");
  return result;
}

static int hook_fabric(struct fi_fabric_attr* attr, struct fid_fabric** fabric_out, void* context) {
  struct fid_fabric* const fabric = attr->fabric;
  if (!start()) return -FI_ENOSYS;
  if (fabric->ops->domain == open_domain) {  // FI_HOOK names pinrail twice: one cache is enough
    *fabric_out = fabric;
    return 0;
  }
  hooked_fabric_t* const hooked = calloc(1, sizeof(*hooked));
  struct fi_ops_fabric* const table = hooked != NULL ? copy_table(fabric->ops, hooked) : NULL;
  struct fi_ops* const ops = hooked != NULL ? copy_table(fabric->fid.ops, hooked) : NULL;
  if (table == NULL || ops == NULL) {
    free_table(table);
    free_table(ops);
    free(hooked);
    return -FI_ENOMEM;
  }
  const struct fi_provider* const below = context;
  snprintf(hooked->provider, sizeof(hooked->provider), "%s", below != NULL ? below->name : "unknown");
  hooked->own_fabric = fabric->ops;
  hooked->own_ops = fabric->fid.ops;
  table->domain = open_domain;
  if (HAS_FIELD(table, domain2)) table->domain2 = open_domain2;
  ops->close = close_fabric;
  fabric->ops = table;
  fabric->fid.ops = ops;
  *fabric_out = fabric;
  return 0;
}

static void clean_up(void) {
  atomic_store(&is_over, true);
  if (prints_stats()) print_stats_of_open_domains();
  pthread_mutex_lock(&start_mutex);
  if (started && !regions_are_open()) (void)pinrail_finalize();  // it would refuse, with a message
  started = false;
  pthread_mutex_unlock(&start_mutex);
}

static struct fi_provider provider = {.version = FI_VERSION(1, 0),
                                      .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                                      .name = "pinrail",
                                      .fabric = hook_fabric,
                                      .cleanup = clean_up};

PINRAIL_API struct fi_provider* fi_prov_ini(void);
struct fi_provider* fi_prov_ini(void) {
  fi_param_define(&provider, "stats", FI_PARAM_BOOL,
                  "Print the cache's figures when a domain is closed, or the process exits (default: no)");
  fi_param_define(&provider, "share", FI_PARAM_BOOL,
                  "Answer also from a larger region, whose key exposes more memory than was asked for (default: no)");
  return &provider;
}
