// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/gpu_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/settings.h"

pthread_mutex_t side_mutex = PTHREAD_MUTEX_INITIALIZER;

// Settings of Pinrail that follow from the parameters of gpusm and rgpusm. Whichever of the two is asked first starts
// Pinrail for both, so each reads the parameters of both.

static const struct {
  const char *component, *name;
  const char* setting;
} kSettings[] = {{"gpusm", "monitor", "monitor"},
                 {"rgpusm", "rcache_name", "mpool_rgpusm_rcache_name"},
                 {"rgpusm", "rcache_size_limit", "mpool_rgpusm_size_limit"},
                 {"rgpusm", "count_limit", "mpool_rgpusm_count_limit"},
                 {"rgpusm", "leave_pinned", "mpool_rgpusm_leave_pinned"},
                 {"rgpusm", "empty_cache", "mpool_rgpusm_empty_cache"},
                 {"rgpusm", "verbose", "mpool_rgpusm_verbose"}};

// "": Open MPI has no such parameter, because the component was left out.
static const char* value_of(const char* component, const char* name) {
  const char** value = NULL;
  const int index = mca_base_var_find("opal", "rcache", component, name);
  if (index < 0 || mca_base_var_get_value(index, &value, NULL, NULL) != OPAL_SUCCESS || value == NULL) return "";
  return *value != NULL ? *value : "";
}

static pinrail_status_t add_gpu_settings(settings_t* settings) {
  for (size_t i = 0; i < sizeof(kSettings) / sizeof(*kSettings); ++i) {
    add_if_set(settings, kSettings[i].setting, value_of(kSettings[i].component, kSettings[i].name));
  }
  const pinrail_status_t status = add_list(settings, value_of("gpusm", "settings"), "rcache_gpusm_settings");
  return status == PINRAIL_SUCCESS ? add_list(settings, value_of("rgpusm", "settings"), "rcache_rgpusm_settings")
                                   : status;
}

// Figures of the one pool as performance variables of MPI_T (rcache_rgpusm_hits, ...).

static uint64_t kept[kMaxStats];  // side_mutex; what a closed pool had counted

static int get_value(const struct mca_base_pvar_t* pvar, void* value, void* object) {
  (void)object;
  const size_t index = (size_t)(uintptr_t)pvar->ctx;
  pinrail_mpool_stats_t stats;
  pthread_mutex_lock(&side_mutex);
  uint64_t sum = kept[index];
  if (side.pool != NULL && read_stats(side.pool, &stats)) sum += stat_value(&stats, pinrail_stat_at(index));
  pthread_mutex_unlock(&side_mutex);
  *(unsigned long long*)value = sum;
  return OPAL_SUCCESS;
}

void register_gpu_pvars(const mca_base_component_t* component) { register_stats(component, get_value); }

gpu_registration_t* new_registration(mca_rcache_base_module_t* rcache, uint64_t base, uint64_t length) {
  gpu_registration_t* const made = calloc(1, sizeof(*made));
  if (made == NULL) return NULL;
  OBJ_CONSTRUCT(&made->super.base, mca_rcache_base_registration_t);
  made->super.base.rcache = rcache;
  made->super.base.base = (unsigned char*)(uintptr_t)base;
  made->super.base.bound = made->super.base.base + length - 1;
  made->super.base.ref_count = 1;
  made->super.data.memh_seg_addr.pval = made->super.base.base;
  made->super.data.memh_seg_len = length;
  return made;
}

void free_registration(gpu_registration_t* registration) {
  OBJ_DESTRUCT(&registration->super.base);
  free(registration);
}

static pinrail_status_t start_pinrail_locked(void) {
  if (side.started) return PINRAIL_SUCCESS;
  settings_t settings = {.count = 0};
  pinrail_status_t status = add_gpu_settings(&settings);
  if (status == PINRAIL_SUCCESS) status = start_with(&settings, "external");
  drop_settings(&settings);
  side.started = status == PINRAIL_SUCCESS;
  return status;
}

static pinrail_status_t make_pool_locked(void) {
  const pinrail_registrar_choice_t registrar = {.name = "cuda_ipc"};
  const pinrail_status_t status = start_pinrail_locked();
  if (status != PINRAIL_SUCCESS) return status;
  return pinrail_mpool_create(side.mpool, &registrar, "openmpi", NULL, &side.pool);
}

// Whether the next request may succeed.
static bool may_pass(pinrail_status_t status) {
  return status == PINRAIL_ERR_BUSY || status == PINRAIL_ERR_OUT_OF_RESOURCE ||
         status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

// By each process: others may have pools.
static void print_failure(pinrail_status_t status) {
  opal_output(0,
              "What happened  Pinrail's rcache %s has no pool: %s.\n"
              "What follows   this process copies GPU memory through host memory%s.\n"
              "What to do     read what Pinrail said above; pinrail_info shows its parameters and their sources.",
              side.mpool, pinrail_status_text(status), may_pass(status) ? ", and tries again at each message" : "");
}

pinrail_mpool_t* gpu_pool(void) {
  pthread_mutex_lock(&side_mutex);
  if (side.pool == NULL && !side.has_failed) {
    const pinrail_status_t status = make_pool_locked();
    if (status != PINRAIL_SUCCESS && !side.has_said) print_failure(status);
    side.has_said |= status != PINRAIL_SUCCESS;
    side.has_failed = status != PINRAIL_SUCCESS && !may_pass(status);
  }
  pinrail_mpool_t* const pool = side.pool;
  pthread_mutex_unlock(&side_mutex);
  return pool;
}

void add_module(mca_rcache_base_module_t* module) {
  construct_module(module);
  pthread_mutex_lock(&side_mutex);
  ++side.modules;
  pthread_mutex_unlock(&side_mutex);
}

// The line has the form of that of Open MPI's rgpusm, which scripts read. A stale one that was found is "invalid".
static void print_stats(const pinrail_mpool_stats_t* stats) {
  const unsigned long long hits = stats->hits, invalid = stats->invalidations;
  opal_output(0, "%s %s: stats (hit/valid/invalid/miss/evicted): %llu/%llu/%llu/%llu/%llu",
              OPAL_NAME_PRINT(OPAL_PROC_MY_NAME), side.mpool, hits, hits, invalid, (unsigned long long)stats->misses,
              (unsigned long long)stats->evictions);
  opal_output(0, "%s %s: Pinrail %s: peak %llu bytes, %llu retries, leave_pinned %u",
              OPAL_NAME_PRINT(OPAL_PROC_MY_NAME), side.mpool, pinrail_version(),
              (unsigned long long)stats->peak_registered_bytes, (unsigned long long)stats->retries,
              stats->leave_pinned);
}

// By force: requests that the program never completed hold registrations.
static void close_pool_locked(void) {
  pinrail_mpool_stats_t stats = {.size = sizeof(stats)};
  if (side.pool == NULL) return;
  (void)pinrail_mpool_read_stats(side.pool, &stats);
  if (side.print_stats) print_stats(&stats);
  keep_counters(kept, &stats);
  (void)pinrail_mpool_destroy(side.pool, PINRAIL_DESTROY_FORCE);
  side.pool = NULL;
}

void drop_module(mca_rcache_base_module_t* module) {
  pthread_mutex_lock(&side_mutex);
  if (--side.modules == 0) {
    close_pool_locked();
    if (side.started) (void)pinrail_finalize();
    side.started = side.has_failed = false;  // a program may start MPI anew
  }
  pthread_mutex_unlock(&side_mutex);
  destruct_module(module);
}

int opal_result(pinrail_status_t status) {
  switch (status) {
    case PINRAIL_SUCCESS: return OPAL_SUCCESS;
    case PINRAIL_ERR_OUT_OF_RESOURCE: return OPAL_ERR_OUT_OF_RESOURCE;
    case PINRAIL_ERR_TEMP_OUT_OF_RESOURCE: return OPAL_ERR_TEMP_OUT_OF_RESOURCE;
    case PINRAIL_ERR_WOULD_BLOCK: return OPAL_ERR_WOULD_BLOCK;
    case PINRAIL_ERR_NOT_FOUND: return OPAL_ERR_NOT_FOUND;
    case PINRAIL_ERR_NOT_SUPPORTED: return OPAL_ERR_NOT_SUPPORTED;
    default: return OPAL_ERROR;
  }
}

int open_gpu_component(void) {
  char what[32], follows[96];
  snprintf(what, sizeof(what), "rcache %s", side.mpool);
  snprintf(follows, sizeof(follows),
           "no %s serves this process: messages of GPU memory are copied through host memory.", side.mpool);
  return check_version(what, follows) ? OPAL_SUCCESS : OPAL_ERR_NOT_AVAILABLE;
}

int deregister_gpu(mca_rcache_base_module_t* rcache, mca_rcache_base_registration_t* reg) {
  (void)rcache;
  gpu_registration_t* const ours = (gpu_registration_t*)reg;
  const pinrail_status_t status = pinrail_mpool_deregister(ours->handle);
  free_registration(ours);
  return opal_result(status);
}
