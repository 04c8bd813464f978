// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/pvars.h"

#include <string.h>

// What there is now, rather than what has happened since the start.
static bool is_level(const char* name) {
  static const char* const levels[] = {"indexed",          "held_bytes",   "held_count",
                                       "dead_bytes",       "dead_count",   "registered_bytes",
                                       "registered_count", "pinned_bytes", "peak_registered_bytes"};
  for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); ++i) {
    if (strcmp(name, levels[i]) == 0) return true;
  }
  return false;
}
bool is_limit(const char* name) { return strstr(name, "_limit") != NULL; }

static int class_of(const char* name) {
  if (is_limit(name)) return MCA_BASE_PVAR_CLASS_SIZE;
  return is_level(name) ? MCA_BASE_PVAR_CLASS_LEVEL : MCA_BASE_PVAR_CLASS_COUNTER;
}
bool read_stats(pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats) {
  memset(stats, 0, sizeof(*stats));
  stats->size = sizeof(*stats);
  return pinrail_mpool_read_stats(pool, stats) == PINRAIL_SUCCESS;
}

uint64_t stat_value(const pinrail_mpool_stats_t* stats, const pinrail_stat_info_t* info) {
  uint64_t value;
  memcpy(&value, (const char*)stats + info->offset, sizeof(value));
  return value;
}

void keep_counters(uint64_t* kept, const pinrail_mpool_stats_t* stats) {
  const pinrail_stat_info_t* info;
  for (size_t i = 0; i < kMaxStats && (info = pinrail_stat_at(i)) != NULL; ++i) {
    if (class_of(info->name) == MCA_BASE_PVAR_CLASS_COUNTER) kept[i] += stat_value(stats, info);
  }
}

void register_stats(const mca_base_component_t* component, mca_base_get_value_fn_t get_value) {
  const pinrail_stat_info_t* info;
  for (size_t i = 0; i < kMaxStats && (info = pinrail_stat_at(i)) != NULL; ++i) {
    mca_base_component_pvar_register(component, info->name, info->help, OPAL_INFO_LVL_4, class_of(info->name),
                                     MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, NULL, MCA_BASE_VAR_BIND_NO_OBJECT,
                                     MCA_BASE_PVAR_FLAG_READONLY | MCA_BASE_PVAR_FLAG_CONTINUOUS, get_value, NULL, NULL,
                                     (void*)(uintptr_t)i);
  }
}
