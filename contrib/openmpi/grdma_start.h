// SPDX-License-Identifier: BSD-3-Clause
// grdma_start.h - what the two descriptors share: grdma_component.c takes the place of Open MPI's grdma by its name,
// takeover_component.c takes over the grdma that is linked into Open MPI 5.
#ifndef PINRAIL_OPENMPI_GRDMA_START_H
#define PINRAIL_OPENMPI_GRDMA_START_H

#include "contrib/openmpi/open_mpi.h"

// What a descriptor has as its rcache_init: starts Pinrail at the first call. NULL, after a message, if it does not
// start.
mca_rcache_base_module_t* init_module(mca_rcache_base_resources_t* resources);

// At close: ends Pinrail. If no transport asked for a module, it reports that in a line.
int stop_pinrail(void);

#endif
