// SPDX-License-Identifier: BSD-3-Clause
// Settings of Pinrail that follow from the parameters of gpusm and rgpusm. Whichever of the two is asked first starts
// Pinrail for both, so each reads the parameters of both.
#include <string.h>

#include "contrib/openmpi/gpu_pool.h"

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

pinrail_status_t add_gpu_settings(settings_t* settings) {
  for (size_t i = 0; i < sizeof(kSettings) / sizeof(*kSettings); ++i) {
    add_if_set(settings, kSettings[i].setting, value_of(kSettings[i].component, kSettings[i].name));
  }
  const pinrail_status_t status = add_list(settings, value_of("gpusm", "settings"), "rcache_gpusm_settings");
  return status == PINRAIL_SUCCESS ? add_list(settings, value_of("rgpusm", "settings"), "rcache_rgpusm_settings")
                                   : status;
}
