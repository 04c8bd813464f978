// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void string_parameter(const mca_base_component_t* component, const char* name, const char* help,
                      mca_base_var_info_lvl_t level, const char* fallback, char** value) {
  *value = (char*)(uintptr_t)fallback;  // Open MPI keeps a copy
  mca_base_component_var_register(component, name, help, MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0, level,
                                  MCA_BASE_VAR_SCOPE_READONLY, value);
}

void bool_parameter(const mca_base_component_t* component, const char* name, const char* help, bool* value) {
  mca_base_component_var_register(component, name, help, MCA_BASE_VAR_TYPE_BOOL, NULL, 0, 0, OPAL_INFO_LVL_9,
                                  MCA_BASE_VAR_SCOPE_READONLY, value);
}

char* served_by_parameter(const mca_base_component_t* component) {
  static char text[96];
  static char* value;
  char help[96];
  snprintf(text, sizeof(text), "Pinrail %s, built for Open MPI " OPAL_VERSION, pinrail_version());
  snprintf(help, sizeof(help), "Whose rcache %s this is", component->mca_component_name);
  value = text;
  mca_base_component_var_register(component, "served_by", help, MCA_BASE_VAR_TYPE_STRING, NULL, 0,
                                  MCA_BASE_VAR_FLAG_DEFAULT_ONLY, OPAL_INFO_LVL_3, MCA_BASE_VAR_SCOPE_CONSTANT, &value);
  return text;
}

bool is_set(const char* value) { return value != NULL && *value != '\0'; }

void add_setting(settings_t* settings, const char* name, const char* value) {
  if (settings->count < kMaxSettings) settings->list[settings->count++] = (pinrail_setting_t){name, value};
}
void add_if_set(settings_t* settings, const char* name, const char* value) {
  if (is_set(value)) add_setting(settings, name, value);
}

// Cuts the text in place. A value may hold commas: what has no "=" belongs to the value before it.
static bool split(settings_t* settings, char* text) {
  const size_t others = settings->count;
  for (char* at = text; at != NULL && *at != '\0';) {
    char* const comma = strchr(at, ',');
    if (comma != NULL) *comma = '\0';
    char* const equals = strchr(at, '=');
    if (settings->count >= kMaxSettings) return false;
    if (equals != NULL) {
      *equals = '\0';
      add_setting(settings, at, equals + 1);
    } else if (settings->count > others) {
      at[-1] = ',';
    } else {
      return false;
    }
    at = comma != NULL ? comma + 1 : NULL;
  }
  return true;
}

pinrail_status_t add_list(settings_t* settings, const char* list, const char* parameter) {
  char* const text = strdup(is_set(list) ? list : "");
  if (text == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  settings->texts[settings->text_count++] = text;
  if (split(settings, text)) return PINRAIL_SUCCESS;
  char what[160];
  snprintf(what, sizeof(what), "the parameter %s is not of the form name=value,name=value with at most 24 of them.",
           parameter);
  print_help(what, "Pinrail does not start.", "write, for instance, mpool_grdma_gc_limit=1M; pinrail_info lists them.");
  return PINRAIL_ERR_BAD_PARAM;
}

void drop_settings(settings_t* settings) {
  while (settings->text_count != 0) free(settings->texts[--settings->text_count]);
  settings->count = 0;
}

pinrail_status_t start_with(settings_t* settings, const char* default_monitor) {
  const pinrail_setting_t defaults[] = {{"monitor", default_monitor}};
  const pinrail_init_options_t options = {.size = sizeof(options),
                                          .defaults = defaults,
                                          .default_count = 1,
                                          .settings = settings->list,
                                          .setting_count = settings->count,
                                          .settings_from = "Open MPI's parameters"};
  return pinrail_init(&options);
}

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

// NULL past the figures of the struct that this was built with: the library may be newer.
static const pinrail_stat_info_t* known_stat(size_t index) {
  const pinrail_stat_info_t* const info = index < kMaxStats ? pinrail_stat_at(index) : NULL;
  return info != NULL && info->offset + sizeof(uint64_t) <= sizeof(pinrail_mpool_stats_t) ? info : NULL;
}

void keep_counters(uint64_t* kept, const pinrail_mpool_stats_t* stats) {
  const pinrail_stat_info_t* info;
  for (size_t i = 0; (info = known_stat(i)) != NULL; ++i) {
    if (class_of(info->name) == MCA_BASE_PVAR_CLASS_COUNTER) kept[i] += stat_value(stats, info);
  }
}

void register_stats(const mca_base_component_t* component, mca_base_get_value_fn_t get_value) {
  const pinrail_stat_info_t* info;
  for (size_t i = 0; (info = known_stat(i)) != NULL; ++i) {
    mca_base_component_pvar_register(component, info->name, info->help, OPAL_INFO_LVL_4, class_of(info->name),
                                     MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, NULL, MCA_BASE_VAR_BIND_NO_OBJECT,
                                     MCA_BASE_PVAR_FLAG_READONLY | MCA_BASE_PVAR_FLAG_CONTINUOUS, get_value, NULL, NULL,
                                     (void*)(uintptr_t)i);
  }
}
