// SPDX-License-Identifier: BSD-3-Clause
// Figures of the one pool as performance variables of MPI_T (rcache_rgpusm_hits, ...).
#include "contrib/openmpi/gpu_pool.h"
#include "contrib/openmpi/pvars.h"

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

void keep_gpu_stats_locked(const pinrail_mpool_stats_t* stats) { keep_counters(kept, stats); }
