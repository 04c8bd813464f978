// SPDX-License-Identifier: BSD-3-Clause
// settings.h - what the adapters' parameters have in common: texts, and lists of Pinrail's settings in one of them.
#ifndef PINRAIL_OPENMPI_SETTINGS_H
#define PINRAIL_OPENMPI_SETTINGS_H

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

#endif
