// SPDX-License-Identifier: BSD-3-Clause
// settings.h - what the adapters' parameters have in common: texts, and lists of Pinrail's settings in one of them;
// and Pinrail's figures (pinrail/stats.h) as performance variables of MPI_T.
#ifndef PINRAIL_CONTRIB_OPENMPI_SETTINGS_H
#define PINRAIL_CONTRIB_OPENMPI_SETTINGS_H

#include <pinrail/pinrail.h>

#include "contrib/openmpi/open_mpi.h"

enum { kMaxSettings = 32 };

enum { kMaxTexts = 2 };

// Settings for pinrail_init(); `texts` are copies of parameters, cut into names and values.
typedef struct settings {
  pinrail_setting_t list[kMaxSettings];
  size_t count;
  char* texts[kMaxTexts];
  size_t text_count;
} settings_t;

void string_parameter(const mca_base_component_t* component, const char* name, const char* help,
                      mca_base_var_info_lvl_t level, const char* fallback, char** value);
void bool_parameter(const mca_base_component_t* component, const char* name, const char* help, bool* value);

// The parameter "served_by", which shows that this component is Pinrail's. Returns its value.
char* served_by_parameter(const mca_base_component_t* component);

bool is_set(const char* value);
void add_setting(settings_t* settings, const char* name, const char* value);
void add_if_set(settings_t* settings, const char* name, const char* value);

// Adds "name=value,name=value", kMaxTexts times at most. PARAMETER: its name, for the message if it is not of that form
// (BAD_PARAM).
pinrail_status_t add_list(settings_t* settings, const char* list, const char* parameter);

void drop_settings(settings_t* settings);  // releases the texts

// pinrail_init() with the default value of "monitor", and the settings.
pinrail_status_t start_with(settings_t* settings, const char* default_monitor);

// Pinrail's figures (pinrail/stats.h) as performance variables of MPI_T.

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
