// SPDX-License-Identifier: BSD-3-Clause
// pvars.h - Pinrail's figures (pinrail/stats.h) as performance variables of MPI_T.
#ifndef PINRAIL_OPENMPI_PVARS_H
#define PINRAIL_OPENMPI_PVARS_H

#include <pinrail/pinrail.h>

#include "contrib/openmpi/open_mpi.h"

enum { kMaxStats = 64 };
_Static_assert(sizeof(pinrail_mpool_stats_t) / sizeof(uint64_t) <= kMaxStats, "a place for each figure");

bool read_stats(pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats);
uint64_t stat_value(const pinrail_mpool_stats_t* stats, const pinrail_stat_info_t* info);

// Adds the counters among the figures to those of pools that are gone, of which the caller has kMaxStats.
void keep_counters(uint64_t* kept, const pinrail_mpool_stats_t* stats);

// A limit, which pools of one cache_name have in common.
bool is_limit(const char* name);

// A variable for each figure. get_value finds the figure's index in pvar->ctx.
void register_stats(const mca_base_component_t* component, mca_base_get_value_fn_t get_value);

#endif
