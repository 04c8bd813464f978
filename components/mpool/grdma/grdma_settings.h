// SPDX-License-Identifier: BSD-3-Clause
// grdma_settings.h - what the parameters and the creator's options of one pool come to.
//
// Threads  constant once it was read. Never in a hook.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_SETTINGS_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_SETTINGS_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <string>

#include "base/core/status.h"
#include "framework/mpool/settings_reader.h"

namespace pinrail::grdma {

struct Settings : mpool::PoolSettings {
  bool gc_thread = false;
  bool gc_thread_insisted = false;  // a pool that gets no thread is not made
  size_t extent = 0;                // bytes of the window that a miss registers; 0: what is asked for
  bool all_rights = false;          // a miss asks for all, not only for those of the request
  std::string gpu_registrar;        // empty: all memory is taken for host memory
  bool gpu_leave_pinned = false;    // what was asked for: no monitor is needed
};
// The strongest of: an override file's value, the creator's option, the parameter. BAD_PARAM: an option makes no sense.
// NOT_SUPPORTED: leave_pinned was asked for, and no monitor works (E5).
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings_out);

}  // namespace pinrail::grdma

#endif
