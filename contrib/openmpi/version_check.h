// SPDX-License-Identifier: BSD-3-Clause
#ifndef PINRAIL_OPENMPI_VERSION_CHECK_H
#define PINRAIL_OPENMPI_VERSION_CHECK_H

#include <stdbool.h>

// False, after a message, if this was built for another minor version of Open MPI. WHAT: the component, for instance
// "rcache grdma". FOLLOWS: who serves the process then.
bool check_version(const char* what, const char* follows);

#endif
