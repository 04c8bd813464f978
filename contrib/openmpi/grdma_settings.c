// SPDX-License-Identifier: BSD-3-Clause
// Parameters: those that Open MPI shows (ompi_info --param rcache grdma --level 9), and the settings of Pinrail that
// follow from them.
#include <string.h>

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/settings.h"

static const char kOpenMpi[] = "openmpi";

grdma_parameters_t parameters;

void register_parameters(const mca_base_component_t* component) {
  parameters.served_by = served_by_parameter(component);
  parameters.print_stats = false;
  bool_parameter(component, "print_stats", "Print the figures of the registration cache at the end",
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

pinrail_status_t start_pinrail(void) {
  settings_t settings = {.count = 0};
  if (!monitor_is_open_mpi()) add_setting(&settings, "monitor", parameters.monitor);
  add_if_set(&settings, "mpool_grdma_size_limit", parameters.size_limit);
  add_if_set(&settings, "mpool_grdma_count_limit", parameters.count_limit);
  pinrail_status_t status = add_list(&settings, parameters.settings, "rcache_grdma_settings");
  if (status == PINRAIL_SUCCESS) status = start_with(&settings, "external");
  drop_settings(&settings);
  return status;
}
