// SPDX-License-Identifier: BSD-3-Clause
// The descriptor, by the name of the component whose place it takes.
#include "contrib/openmpi/grdma.h"

static bool opened;

static int open_component(void) {
  opened =
      check_version("rcache grdma",
                    "no grdma serves this process: Pinrail's is not used, and Open MPI does not load its own after it."
                    " Transports that need it (" GRDMA_USERS ") stay away.");
  return opened ? OPAL_SUCCESS : OPAL_ERR_NOT_AVAILABLE;
}

static int close_component(void) { return opened ? stop_pinrail() : OPAL_SUCCESS; }

static int register_component(void) {
  register_parameters(&mca_rcache_grdma_component.rcache_version);
  register_pvars(&mca_rcache_grdma_component.rcache_version);
  return OPAL_SUCCESS;
}

mca_rcache_base_component_t* served_component(void) { return &mca_rcache_grdma_component; }

mca_rcache_base_component_t mca_rcache_grdma_component = {
    .rcache_version = {MCA_RCACHE_BASE_VERSION_3_0_0, .mca_component_name = "grdma",
                       MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION),
                       .mca_open_component = open_component, .mca_close_component = close_component,
                       .mca_register_component_params = register_component},
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = init_module};
