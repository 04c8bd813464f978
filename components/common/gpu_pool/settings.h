// SPDX-License-Identifier: BSD-3-Clause
// settings.h - settings of a pool of GPU memory, from its parameters and its creator's options. API context; takes no
// lock.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_SETTINGS_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_SETTINGS_H

#include <pinrail/component_mpool.h>

#include <string>

#include "base/core/status.h"
#include "components/common/gpu_pool/gpu_cache.h"

namespace pinrail::gpu_pool {

struct Settings {
  std::string prefix;  // "mpool_rgpusm_"
  bool leave_pinned = true;
  bool empty_cache = false;
  bool print_stats = false;
  uint64_t gc_interval_ms = 100;
  size_t max_reg_size = 0;
  mpool::WantedLimits limits;
};

// Reads the settings. BAD_PARAM: an option is out of range. ERROR: a parameter is not declared.
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* prefix,
                     Settings* settings_out);

}  // namespace pinrail::gpu_pool

#endif
