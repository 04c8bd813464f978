// SPDX-License-Identifier: BSD-3-Clause
// Component "pinrail" for Open MPI 5, whose own grdma is linked into its library: a file of the name grdma would be
// dropped in silence. So this one is loaded by a name of its own, and puts Pinrail's init function into the descriptor
// of the grdma that Open MPI has. All transports reach grdma through that descriptor. If Open MPI was built so that its
// components are files too (--enable-mca-dso), its grdma may be opened, closed and unloaded before this one or after.
#include "contrib/openmpi/grdma.h"

PINRAIL_API extern mca_rcache_base_component_t mca_rcache_pinrail_component;

static mca_rcache_base_component_t* taken;            // Open MPI's grdma; NULL: it has none, or it was not taken over
static mca_rcache_base_component_init_fn_t own_init;  // its own function

// Under the name of grdma, as its users know them. Open MPI's own grdma registers print_stats too, before or after;
// both have read its value then.
static void register_as(const mca_base_component_t* grdma) {
  register_parameters(grdma);
  register_pvars(grdma);
}

static int register_component(void) {
  const mca_rcache_base_component_t* const grdma = find_grdma();
  if (grdma != NULL) register_as(&grdma->rcache_version);
  return OPAL_SUCCESS;
}

static int open_component(void) {
  mca_rcache_base_component_t* const grdma = find_grdma();
  if (grdma == NULL) {
    print_help("Pinrail was loaded, but this Open MPI has no component grdma, or the parameter rcache excludes it.",
               "no grdma serves this process. Transports that need it (" GRDMA_USERS ") stay away.",
               "let the parameter rcache name or allow both grdma and pinrail.");
    return OPAL_ERR_NOT_AVAILABLE;
  }
  if (!check_version("rcache grdma", "everything works; Pinrail caches nothing.")) return OPAL_ERR_NOT_AVAILABLE;
  own_init = grdma->rcache_init;
  grdma->rcache_init = init_module;
  taken = grdma;
  return OPAL_SUCCESS;
}

static int close_component(void) {
  if (taken == NULL) return OPAL_SUCCESS;
  // A grdma that was closed before this one is out of the list, and its memory may be gone.
  if (find_grdma() == taken) taken->rcache_init = own_init;
  taken = NULL;
  return stop_pinrail();
}

mca_rcache_base_component_t* served_component(void) { return taken; }

static mca_rcache_base_module_t* refuse(mca_rcache_base_resources_t* resources) {
  (void)resources;
  print_help("a transport asked for an rcache by the name of \"pinrail\", which serves those who ask for grdma.",
             "it gets none.", "let it ask for \"grdma\": that is Pinrail's.");
  return NULL;
}

mca_rcache_base_component_t mca_rcache_pinrail_component = {
    .rcache_version = {MCA_RCACHE_BASE_VERSION_3_0_0, .mca_component_name = "pinrail",
                       MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION),
                       .mca_open_component = open_component, .mca_close_component = close_component,
                       .mca_register_component_params = register_component},
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = refuse};
