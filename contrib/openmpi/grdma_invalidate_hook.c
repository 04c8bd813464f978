// SPDX-License-Identifier: BSD-3-Clause
// Hook context: Open MPI's memory hooks run inside munmap, perhaps inside free.
#include "contrib/openmpi/grdma.h"

static _Atomic(const mca_rcache_base_module_t*) reporter;

void set_reporter(const mca_rcache_base_module_t* rcache) { atomic_store(&reporter, rcache); }

// Open MPI ends the process if the result is not success.
int invalidate_range_hook(mca_rcache_base_module_t* rcache, void* base, size_t size) {
  if (rcache == atomic_load(&reporter)) pinrail_monitor_report(base, size);
  return OPAL_SUCCESS;
}
