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
#include <unistd.h>

#define HAS_FIELD(table, field) \
  ((table)->size >= offsetof(__typeof__(*(table)), field) + sizeof((table)->field) && (table)->field != NULL)

typedef struct hooked_fabric {
  struct fi_ops_fabric* own_fabric;
  struct fi_ops* own_ops;
  char provider[32];
} hooked_fabric_t;

static struct fi_provider provider;
static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static pid_t starter;  // start_mutex; the process that has started Pinrail, 0: none. A forked child starts it anew.
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
  if (starter != getpid()) {
    stats_wanted = is_set("stats");
    sharing_wanted = is_set("share");
    // The program gets an error of libfabric's if there is no room, and no message about pools that it did not make.
    const pinrail_setting_t silent = {"mpool_base_events", "0"};
    const pinrail_init_options_t options = {.size = sizeof(options), .defaults = &silent, .default_count = 1};
    starter = pinrail_init(&options) == PINRAIL_SUCCESS ? getpid() : 0;
  }
  const bool result = starter != 0;
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
  if (atomic_exchange(&is_over, true)) return;  // FI_PROVIDER_PATH may name our folder twice
  if (prints_stats()) print_stats_of_open_domains();
  pthread_mutex_lock(&start_mutex);
  // A pool in use stays, and is not used again once none was: another thread may be inside a call, and a plug-in may
  // close its domains later.
  if (starter == getpid() && !pools_are_used()) (void)pinrail_finalize();
  starter = 0;
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

// Domains: which of them are cached, and their pools.

// FI_MR_BASIC, which stands for virtual addresses, allocated memory and the provider's keys; newer headers warn of it.
enum { kBasicMode = 1 << 0 };
// FI_REG_MR, likewise: registrations complete by events.
static const uint64_t kRegistersByEvent = UINT64_C(1) << 59;

static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static hooked_domain_t* open_domains;  // open_mutex
static pid_t opener;                   // open_mutex; the process to which they belong

static void add_open(hooked_domain_t* hooked) {
  pthread_mutex_lock(&open_mutex);
  if (opener != getpid()) open_domains = NULL;  // those of the parent, of which this child may close some
  opener = getpid();
  hooked->next = open_domains;
  open_domains = hooked;
  pthread_mutex_unlock(&open_mutex);
}

static void remove_open(const hooked_domain_t* hooked) {
  pthread_mutex_lock(&open_mutex);
  hooked_domain_t** at = &open_domains;
  while (*at != NULL && *at != hooked) at = &(*at)->next;
  if (*at != NULL) *at = hooked->next;
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
static void name_passed_through(const char* name, const char* why) {
  static _Atomic(uint64_t) told;  // one bit of a hash for each name
  uint64_t hash = 0;
  for (const char* at = name; *at != '\0'; ++at) hash = hash * 31 + (unsigned char)*at;
  const uint64_t bit = UINT64_C(1) << (hash % 64);
  if ((atomic_fetch_or(&told, bit) & bit) != 0) return;
  fprintf(stderr, "pinrail: registrations of provider %s are passed through: %s.\n", name, why);
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

// Sequentially consistent: clean_up() looks at the uses after it has said that the process exits.
bool begin_use(hooked_domain_t* hooked) {
  atomic_fetch_add(&hooked->uses, 1);
  if (!providers_are_gone()) return true;
  end_use(hooked);
  return false;
}
void end_use(hooked_domain_t* hooked) { atomic_fetch_sub(&hooked->uses, 1); }

// Others see the pool in the list of open domains.
static void set_pool(hooked_domain_t* hooked, pinrail_mpool_t* pool) {
  pthread_mutex_lock(&open_mutex);
  hooked->pool = pool;
  pthread_mutex_unlock(&open_mutex);
}

// Regions that the program still holds keep a domain open, as they do without a cache. The pool is not asked: it would
// tell the program about pools.
static int empty_pool(hooked_domain_t* hooked) {
  pinrail_mpool_stats_t stats = {.size = sizeof(stats)};
  pinrail_mpool_t* const pool = hooked->pool;
  if (pool == NULL) return 0;
  if (atomic_load(&hooked->uses) != 0) return -FI_EBUSY;
  if (!begin_use(hooked)) return 0;  // the pool is gone, or stays as those of domains that are never closed
  (void)pinrail_mpool_read_stats(pool, &stats);
  set_pool(hooked, NULL);
  const bool is_destroyed = pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS;
  if (!is_destroyed) set_pool(hooked, pool);
  end_use(hooked);
  if (is_destroyed && prints_stats()) print_stats(hooked, &stats);
  return is_destroyed ? 0 : -FI_EBUSY;
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
  if (hooked->pool == NULL && begin_use(hooked)) {
    (void)make_pool(hooked);
    end_use(hooked);
  }
  return result;
}

bool pools_are_used(void) {
  bool found = false;
  pthread_mutex_lock(&open_mutex);
  for (const hooked_domain_t* each = open_domains; each != NULL; each = each->next)
    found = found || atomic_load(&each->uses) != 0;
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
  if ((flags & kRegistersByEvent) != 0) atomic_store(&hooked->passes_through, true);
  return hooked->own_ops->bind(fid, other, flags);
}

// A provider's own functions (those of efa, for one) take its own regions for what the program names. Programs ask for
// them before they register.
static int open_domain_functions(struct fid* fid, const char* name, uint64_t flags, void** functions, void* context) {
  hooked_domain_t* const hooked = table_owner(fid->ops);
  const int result = hooked->own_ops->ops_open(fid, name, flags, functions, context);
  if (result == 0) atomic_store(&hooked->passes_through, true);
  return result;
}

void hook_domain(struct fid_domain* domain, const struct fi_info* info, const char* name) {
  const char* const why = obstacle(info);
  if (why != NULL) {
    name_passed_through(name, why);
    return;
  }
  hooked_domain_t* const hooked = calloc(1, sizeof(*hooked));
  if (hooked == NULL) return;
  hooked->domain = domain;
  hooked->own_mr = domain->mr;
  hooked->own_ops = domain->fid.ops;
  hooked->hooked_mr = copy_table(domain->mr, hooked);
  hooked->hooked_ops = copy_table(domain->fid.ops, hooked);
  hooked->names_kinds = ((info->caps | info->domain_attr->caps) & FI_HMEM) != 0 ||
                        ((uint64_t)info->domain_attr->mr_mode & FI_MR_HMEM) != 0;
  hooked->threads = info->domain_attr->threading == FI_THREAD_SAFE ? PINRAIL_THREAD_CONCURRENT : PINRAIL_THREAD_CALLER;
  snprintf(hooked->provider, sizeof(hooked->provider), "%s", name);
  add_open(hooked);
  const bool is_served = hooked->hooked_mr != NULL && hooked->hooked_ops != NULL && start() && begin_use(hooked);
  const bool has_pool = is_served && make_pool(hooked);
  if (is_served) end_use(hooked);
  if (!has_pool) {
    name_passed_through(name, "Pinrail has no pool for it");
    remove_open(hooked);
    discard(hooked);
    return;
  }
  fill_mr_table(hooked->hooked_mr);
  hooked->hooked_ops->close = close_domain;
  hooked->hooked_ops->bind = bind_domain;
  if (HAS_FIELD(hooked->hooked_ops, ops_open)) hooked->hooked_ops->ops_open = open_domain_functions;
  put_ours(hooked);
}
