// SPDX-License-Identifier: BSD-3-Clause
// Pinrail's figures as performance variables of MPI_T (rcache_grdma_hits, ...), and as a line at the end.
#include <string.h>

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/settings.h"

// What modules that are gone had counted. Written under modules_mutex.
static uint64_t kept[kMaxStats];

// Those that pools of one cache_name have in common; see pinrail/stats.h.
static bool is_of_cache(const char* name) {
  return is_limit(name) || strstr(name, "registered_") != NULL || strcmp(name, "pinned_bytes") == 0;
}

static bool is_first_of_cache(const grdma_module_t* module) {
  for (const grdma_module_t* each = modules; each != module; each = each->next) {
    if (strcmp(each->resources.cache_name, module->resources.cache_name) == 0) return false;
  }
  return true;
}

static uint64_t sum_locked(const pinrail_stat_info_t* info) {
  uint64_t sum = 0;
  for (grdma_module_t* each = modules; each != NULL; each = each->next) {
    pinrail_mpool_stats_t stats;
    if (is_of_cache(info->name) && !is_first_of_cache(each)) continue;
    if (!read_stats(each->pool, &stats)) continue;
    const uint64_t value = stat_value(&stats, info);
    sum = value > UINT64_MAX - sum ? UINT64_MAX : sum + value;  // no limit and no limit is no limit
  }
  return sum;
}

static int get_value(const struct mca_base_pvar_t* pvar, void* value, void* object) {
  (void)object;
  const size_t index = (size_t)(uintptr_t)pvar->ctx;
  pthread_mutex_lock(&modules_mutex);
  const uint64_t sum = sum_locked(pinrail_stat_at(index)) + kept[index];
  pthread_mutex_unlock(&modules_mutex);
  *(unsigned long long*)value = sum;
  return OPAL_SUCCESS;
}

void register_pvars(const mca_base_component_t* component) { register_stats(component, get_value); }

void keep_stats(grdma_module_t* module) {
  pinrail_mpool_stats_t stats;
  if (!read_stats(module->pool, &stats)) return;
  pthread_mutex_lock(&modules_mutex);
  keep_counters(kept, &stats);
  pthread_mutex_unlock(&modules_mutex);
}

// The first line has the form of Open MPI's own, which scripts read.
void log_stats(grdma_module_t* module) {
  pinrail_mpool_stats_t stats;
  if (!read_stats(module->pool, &stats)) return;
  const char* const who = OPAL_NAME_PRINT(OPAL_PROC_MY_NAME);
  const unsigned long found = atomic_load(&module->found);
  opal_output(0, "%s grdma: stats (hit/miss/found/not found/evicted/tree size): %llu/%llu/%lu/%lu/%llu/%llu", who,
              (unsigned long long)stats.hits - found, (unsigned long long)stats.misses, found,
              atomic_load(&module->not_found), (unsigned long long)stats.evictions, (unsigned long long)stats.indexed);
  opal_output(0, "%s grdma: Pinrail %s for %s: %llu invalidated, %llu raced, peak %llu bytes, leave_pinned %u", who,
              pinrail_version(), module->resources.cache_name, (unsigned long long)stats.invalidations,
              (unsigned long long)stats.races, (unsigned long long)stats.peak_registered_bytes, stats.leave_pinned);
}
