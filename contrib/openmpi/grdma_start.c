// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/grdma_start.h"

#include <stdio.h>
#include <string.h>

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/tell.h"

static bool started;  // Pinrail is
static bool asked;    // a transport has, for a module

// Transports ask while MPI_Init runs. Once: a second device is one more module, and no news.
static void tell_served(const char* cache_name) {
  static bool told;
  char line[256];
  if (told) return;
  told = true;
  // The name is that of the transport, a dot, and what Open MPI 4.1 prints as "(null)".
  snprintf(line, sizeof(line),
           "Pinrail %s serves this job: registrations of the transport %.*s%s; memory events from %s.",
           pinrail_version(), (int)strcspn(cache_name, "."), cache_name,
           keeps_pinned() ? "" : ", none of which is kept (mpi_leave_pinned 0)", parameters.monitor);
  print_job_line(line);
}

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
  mca_rcache_base_module_t* const module = create_module(resources);
  if (module != NULL) tell_served(((const grdma_module_t*)module)->resources.cache_name);
  return module;
}

int stop_pinrail(void) {
  if (!asked) {
    print_line("Pinrail's grdma served nothing: this process opened no transport that asks for it (" GRDMA_USERS ").");
  }
  if (!started) return OPAL_SUCCESS;
  started = false;
  return pinrail_finalize() == PINRAIL_SUCCESS ? OPAL_SUCCESS : OPAL_ERROR;
}
