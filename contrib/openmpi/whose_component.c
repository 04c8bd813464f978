// SPDX-License-Identifier: BSD-3-Clause
// Component "pinrail": caches nothing. It looks whose grdma Open MPI took, and says so if it is not Pinrail's: of two
// components of one name the first of mca_base_component_path is taken and the other one passed by in silence.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "contrib/openmpi/open_mpi.h"

PINRAIL_API extern mca_rcache_base_component_t mca_rcache_pinrail_component;

static const char* file_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fname : "";
}

static bool is_in_folder_of(const char* file, const char* other) {
  const char* const slash = strrchr(other, '/');
  const size_t length = slash != NULL ? (size_t)(slash - other) + 1 : 0;
  return strncmp(file, other, length) == 0 && strchr(file + length, '/') == NULL;
}

static int open_component(void) {
  const mca_rcache_base_component_t* const served = find_grdma();
  const char* const ours = file_of(&mca_rcache_pinrail_component);
  const char* const theirs = served != NULL ? file_of(served) : "";
  char what[1024];
  if (served == NULL) {
    print_help("Pinrail's folder is in mca_base_component_path, but no component grdma could be loaded.",
               "no grdma serves this process. Transports that need it (ofi, openib, uct) stay away.",
               "see that mca_rcache_grdma.so is there and can be read, and that \"rcache\" does not exclude it.");
  } else if (!is_in_folder_of(theirs, ours)) {
    snprintf(what, sizeof(what), "this process is served by the rcache grdma of %s, and not by Pinrail's beside %s.",
             theirs, ours);
    print_help(
        what, "everything works; Pinrail caches nothing.",
        "name Pinrail's folder first in mca_base_component_path: mpirun $(contrib/openmpi/mpirun-args) ...; see that"
        " mca_rcache_grdma.so is in it.");
  }
  opal_output_verbose(1, opal_rcache_base_framework.framework_output, "grdma is that of %s",
                      served != NULL ? theirs : "no file");
  return OPAL_SUCCESS;
}

static mca_rcache_base_module_t* init_module(mca_rcache_base_resources_t* resources) {
  (void)resources;
  print_help("a transport asked for an rcache by the name of \"pinrail\", which only says whose grdma is used.",
             "it gets none.", "let it ask for \"grdma\": that is Pinrail's.");
  return NULL;
}

mca_rcache_base_component_t mca_rcache_pinrail_component = {
    .rcache_version = {MCA_RCACHE_BASE_VERSION_3_0_0, .mca_component_name = "pinrail",
                       MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, OPAL_RELEASE_VERSION),
                       .mca_open_component = open_component},
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = init_module};
