// SPDX-License-Identifier: BSD-3-Clause
// Parameters: those that Open MPI shows (ompi_info --param rcache grdma --level 9), and the settings of Pinrail that
// follow from them.
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/tell.h"

enum { kMaxSettings = 32 };
static const char kOpenMpi[] = "openmpi";

grdma_parameters_t parameters;

static void string_parameter(const mca_base_component_t* component, const char* name, const char* help,
                             mca_base_var_info_lvl_t level, const char* fallback, char** value) {
  *value = (char*)fallback;  // Open MPI keeps a copy
  mca_base_component_var_register(component, name, help, MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0, level,
                                  MCA_BASE_VAR_SCOPE_READONLY, value);
}

static void served_by_parameter(const mca_base_component_t* component) {
  static char text[96];
  snprintf(text, sizeof(text), "Pinrail %s, built for Open MPI " OPAL_VERSION, pinrail_version());
  parameters.served_by = text;
  mca_base_component_var_register(component, "served_by", "Whose rcache grdma this is", MCA_BASE_VAR_TYPE_STRING, NULL,
                                  0, MCA_BASE_VAR_FLAG_DEFAULT_ONLY, OPAL_INFO_LVL_3, MCA_BASE_VAR_SCOPE_CONSTANT,
                                  &parameters.served_by);
}

void register_parameters(const mca_base_component_t* component) {
  served_by_parameter(component);
  parameters.print_stats = false;
  mca_base_component_var_register(component, "print_stats", "Print the figures of the registration cache at the end",
                                  MCA_BASE_VAR_TYPE_BOOL, NULL, 0, 0, OPAL_INFO_LVL_9, MCA_BASE_VAR_SCOPE_READONLY,
                                  &parameters.print_stats);
  string_parameter(component, "monitor",
                   "What reports memory that goes away: \"openmpi\" (Open MPI's memory hooks), or monitors of Pinrail's"
                   " as in its parameter monitor, for instance \"patcher\"",
                   OPAL_INFO_LVL_5, kOpenMpi, &parameters.monitor);
  string_parameter(component, "size_limit",
                   "Most bytes kept registered, with suffix K, M or G, or \"unlimited\"; empty: as Pinrail's parameter"
                   " mpool_grdma_size_limit says. Too low: every transfer pays a registration",
                   OPAL_INFO_LVL_5, "", &parameters.size_limit);
  string_parameter(
      component, "count_limit",
      "Most registrations kept, or \"unlimited\"; empty: as Pinrail's parameter mpool_grdma_count_limit says",
      OPAL_INFO_LVL_5, "", &parameters.count_limit);
  string_parameter(component, "settings",
                   "Any parameters of Pinrail's: name=value, separated by commas; pinrail_info lists them",
                   OPAL_INFO_LVL_6, "", &parameters.settings);
}

bool monitor_is_open_mpi(void) { return strcmp(parameters.monitor, kOpenMpi) == 0; }

static bool is_set(const char* value) { return value != NULL && *value != '\0'; }

// Cuts "name=value,name=value" in place. A value may hold commas: what has no "=" belongs to the value before it.
static bool split(char* text, pinrail_setting_t* settings, size_t* count) {
  const size_t own = *count;
  for (char* at = text; at != NULL && *at != '\0';) {
    char* const comma = strchr(at, ',');
    if (comma != NULL) *comma = '\0';
    char* const equals = strchr(at, '=');
    if (equals != NULL && *count < kMaxSettings) {
      *equals = '\0';
      settings[(*count)++] = (pinrail_setting_t){at, equals + 1};
    } else if (*count > own && *count < kMaxSettings) {
      at[-1] = ',';
    } else {
      return false;
    }
    at = comma != NULL ? comma + 1 : NULL;
  }
  return true;
}

static pinrail_status_t start_with(char* text) {
  const pinrail_setting_t defaults[] = {{"monitor", "external"}};
  pinrail_setting_t settings[kMaxSettings];
  size_t count = 0;
  if (!monitor_is_open_mpi()) settings[count++] = (pinrail_setting_t){"monitor", parameters.monitor};
  if (is_set(parameters.size_limit)) {
    settings[count++] = (pinrail_setting_t){"mpool_grdma_size_limit", parameters.size_limit};
  }
  if (is_set(parameters.count_limit)) {
    settings[count++] = (pinrail_setting_t){"mpool_grdma_count_limit", parameters.count_limit};
  }
  if (!split(text, settings, &count)) {
    print_help("the parameter rcache_grdma_settings is not of the form name=value,name=value with at most 28 of them.",
               "Pinrail does not start.", "write, for instance: --mca rcache_grdma_settings mpool_grdma_gc_limit=1M");
    return PINRAIL_ERR_BAD_PARAM;
  }
  const pinrail_init_options_t options = {sizeof(options), defaults, 1, settings, count};
  return pinrail_init(&options);
}

pinrail_status_t start_pinrail(void) {
  char* const text = strdup(is_set(parameters.settings) ? parameters.settings : "");
  if (text == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_status_t status = start_with(text);
  free(text);
  return status;
}
