// SPDX-License-Identifier: BSD-3-Clause
// open_mpi.h - Open MPI's developer headers in their order, and what the adapter takes for granted of them. It is
// checked here, when it is compiled: 4.1 is what the adapter runs with; 5.0 has the same interface of this framework.
#ifndef PINRAIL_OPENMPI_OPEN_MPI_H
#define PINRAIL_OPENMPI_OPEN_MPI_H

#include "opal_config.h"
// opal_config.h comes first
#include <pinrail/types.h>
#include <stddef.h>

#include "opal/constants.h"
#include "opal/mca/base/base.h"
#include "opal/mca/base/mca_base_pvar.h"
#include "opal/mca/rcache/base/base.h"
#include "opal/mca/rcache/rcache.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params.h"
#include "opal/runtime/opal_progress.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/version.h"

_Static_assert(OPAL_MAJOR_VERSION == 4 || OPAL_MAJOR_VERSION == 5, "the rcache framework is known as of 4 and 5");
_Static_assert(RCACHE_MAJOR_VERSION == 3 && RCACHE_MINOR_VERSION == 0, "another interface of the framework rcache");

_Static_assert((int)PINRAIL_ACCESS_LOCAL_WRITE == (int)MCA_RCACHE_ACCESS_LOCAL_WRITE,
               "rights are passed on as they are");
_Static_assert((int)PINRAIL_ACCESS_REMOTE_READ == (int)MCA_RCACHE_ACCESS_REMOTE_READ, "as above");
_Static_assert((int)PINRAIL_ACCESS_REMOTE_WRITE == (int)MCA_RCACHE_ACCESS_REMOTE_WRITE, "as above");
_Static_assert((int)PINRAIL_ACCESS_REMOTE_ATOMIC == (int)MCA_RCACHE_ACCESS_REMOTE_ATOMIC, "as above");
_Static_assert((int)PINRAIL_RIGHTS_MASK == (int)MCA_RCACHE_ACCESS_ANY, "as above");
_Static_assert((int)PINRAIL_FLAG_CACHE_BYPASS == (int)MCA_RCACHE_FLAGS_CACHE_BYPASS, "flags too");
_Static_assert((int)PINRAIL_FLAG_PERSISTENT == (int)MCA_RCACHE_FLAGS_PERSIST, "flags too");

_Static_assert(offsetof(mca_rcache_base_registration_t, super) == 0, "BTLs take the registration for their own");
_Static_assert(sizeof(((mca_rcache_base_registration_t*)0)->ref_count) == 4, "a count of 32 bits");

// One bit, two names.
#if OPAL_MAJOR_VERSION >= 5
enum { GPU_MEMORY = MCA_RCACHE_FLAGS_ACCELERATOR_MEM };
#else
enum { GPU_MEMORY = MCA_RCACHE_FLAGS_CUDA_GPU_MEM };
#endif
_Static_assert(GPU_MEMORY == 0x8, "GPU memory is never cached here, so it has to be known");

#endif
