// SPDX-License-Identifier: BSD-3-Clause
// Reads the settings of a pool while it is created. API context; takes no lock.
#include "components/common/gpu_pool/settings.h"

#include "framework/mpool/settings_reader.h"

namespace pinrail::gpu_pool {

// GPU memory needs no memory monitor, because buffer ids and validity slots show when it ends (E5). So "auto" (-1) of
// leave_pinned means yes.
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* prefix,
                     Settings* settings_out) {
  if (!mpool::options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  mpool::SettingsReader reader(host, prefix);
  Settings settings;
  settings.prefix = prefix;
  settings.leave_pinned = reader.leave_pinned(config) != 0;
  settings.limits = reader.limits(config);
  settings.empty_cache = reader.flag("empty_cache");
  settings.print_stats = reader.flag("print_stats");
  settings.gc_interval_ms = reader.number("gc_interval");
  settings.max_reg_size = reader.number("max_reg_size");
  if (!reader.is_complete()) return PINRAIL_ERR_ERROR;
  *settings_out = settings;
  return success();
}

}  // namespace pinrail::gpu_pool
