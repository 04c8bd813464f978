// SPDX-License-Identifier: BSD-3-Clause
// The descriptor, by the name of the component whose place it takes.
#include <stdio.h>

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/tell.h"

static bool started;  // Pinrail is

// Open MPI does not compare versions of its own: a component that was built for other structs would be used.
static bool is_built_for_this(void) {
  int built[2], running[2];
  return sscanf(OPAL_VERSION, "%d.%d", &built[0], &built[1]) == 2 &&
         sscanf(opal_version_string, "%d.%d", &running[0], &running[1]) == 2 && built[0] == running[0] &&
         built[1] == running[1];
}

static int open_component(void) {
  if (is_built_for_this()) return OPAL_SUCCESS;
  char what[160];
  snprintf(what, sizeof(what), "Pinrail's rcache grdma was built for Open MPI " OPAL_VERSION "; this is Open MPI %s.",
           opal_version_string);
  print_help(
      what,
      "no grdma serves this process: Pinrail's is not used, and Open MPI does not load its own after it."
      " Transports that need it (ofi, openib, uct) stay away.",
      "build Pinrail with this Open MPI's headers (configure --with-openmpi=DIR), or leave Pinrail's folder out of"
      " mca_base_component_path.");
  return OPAL_ERR_NOT_AVAILABLE;
}

static int close_component(void) {
  if (!started) return OPAL_SUCCESS;
  started = false;
  return pinrail_finalize() == PINRAIL_SUCCESS ? OPAL_SUCCESS : OPAL_ERROR;
}

static int register_component(void) {
  register_parameters(&mca_rcache_grdma_component.rcache_version);
  register_pvars(&mca_rcache_grdma_component.rcache_version);
  return OPAL_SUCCESS;
}

static mca_rcache_base_module_t* init_module(mca_rcache_base_resources_t* resources) {
  if (!started) {
    const pinrail_status_t status = start_pinrail();
    if (status != PINRAIL_SUCCESS) {
      print_help("Pinrail, whose rcache grdma this process was given, does not start.",
                 "no grdma serves this process. Transports that need it (ofi, openib, uct) stay away.",
                 "read what Pinrail said above; pinrail_info shows its parameters and where they come from.");
      return NULL;
    }
    started = true;
  }
  return create_module(resources);
}

mca_rcache_base_component_t mca_rcache_grdma_component = {
    .rcache_version = {MCA_RCACHE_BASE_VERSION_3_0_0, .mca_component_name = "grdma",
                       MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION),
                       .mca_open_component = open_component, .mca_close_component = close_component,
                       .mca_register_component_params = register_component},
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = init_module};
