// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/grdma_start.h"

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/tell.h"

static bool started;  // Pinrail is
static bool asked;    // a transport has, for a module

mca_rcache_base_module_t* init_module(mca_rcache_base_resources_t* resources) {
  asked = true;
  if (!started) {
    const pinrail_status_t status = start_pinrail();
    if (status != PINRAIL_SUCCESS) {
      print_fatal_help("Pinrail, whose rcache grdma this process was given, does not start.",
                       "no grdma serves this process. Transports that need it (" GRDMA_USERS ") stay away.",
                       "read what Pinrail said above; pinrail_info shows its parameters and where they come from.");
      return NULL;
    }
    started = true;
  }
  return create_module(resources);
}

int stop_pinrail(void) {
  if (!asked) {
    print_line("Pinrail's grdma served nothing: this process opened no transport that asks for it (" GRDMA_USERS ").");
  }
  if (!started) return OPAL_SUCCESS;
  started = false;
  return pinrail_finalize() == PINRAIL_SUCCESS ? OPAL_SUCCESS : OPAL_ERROR;
}
