// SPDX-License-Identifier: BSD-3-Clause
// settings.h - settings of a pool of GPU memory, from its parameters and its creator's options. API context; takes no
// lock.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_SETTINGS_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_SETTINGS_H

#include <pinrail/component.h>

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
  Limits limits;
  bool explicit_bytes = false;  // the creator named a limit, which must equal the cache's
  bool explicit_count = false;
};

// Reads the settings. BAD_PARAM: an option is out of range. ERROR: a parameter is not declared.
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* prefix,
                     Settings* settings_out);

// The origin of a parameter's value for messages: "the default", "/etc/... line 3".
std::string source_of(const pinrail_host_t* host, const std::string& parameter);

}  // namespace pinrail::gpu_pool

#endif
