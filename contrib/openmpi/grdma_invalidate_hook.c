// SPDX-License-Identifier: BSD-3-Clause
// Hook context: Open MPI's memory hooks run inside munmap, perhaps inside free.
#include "contrib/openmpi/grdma.h"

static atomic_bool reports;

void report_events(bool wanted) { atomic_store(&reports, wanted); }

// Open MPI ends the process if the result is not success.
int invalidate_range_hook(mca_rcache_base_module_t* rcache, void* base, size_t size) {
  (void)rcache;
  if (atomic_load(&reports)) pinrail_monitor_report(base, size);
  return OPAL_SUCCESS;
}
