// SPDX-License-Identifier: BSD-3-Clause
// Reads the settings of a pool while it is created, and the origin of a parameter. API context; takes no lock.
#include "components/common/gpu_pool/settings.h"

#include <pinrail/pinrail.h>

namespace pinrail::gpu_pool {
namespace {

// The parameter's present state; name is NULL if it is not declared.
pinrail_param_info_t info_of(const pinrail_host_t* host, const std::string& name) {
  pinrail_param_info_t info{};
  info.size = sizeof(info);
  if (host->param_info(host, name.c_str(), &info) != PINRAIL_SUCCESS) info.name = nullptr;
  return info;
}

// The value of highest precedence of: an override file, the creator's option, the parameter. 0 means no limit.
uint64_t limit_of(const pinrail_param_info_t& own, int64_t option, bool* explicit_out) {
  *explicit_out = option != PINRAIL_UNSET && own.source != PINRAIL_SOURCE_OVERRIDE;
  const uint64_t value = *explicit_out ? static_cast<uint64_t>(option) : own.typed.u;
  return value == 0 ? UINT64_MAX : value;
}

bool is_limit(int64_t option) { return option == PINRAIL_UNSET || option >= 0; }

bool options_are_sane(const pinrail_mpool_config_t& config) {
  const bool kept = config.leave_pinned == PINRAIL_UNSET || (config.leave_pinned >= -1 && config.leave_pinned <= 1);
  return kept && is_limit(config.size_limit) && is_limit(config.count_limit);
}

}  // namespace

// GPU memory needs no memory monitor, because buffer ids and validity slots show when it ends (E5). So "auto" (-1) of
// leave_pinned means yes.
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* prefix,
                     Settings* settings_out) {
  if (!options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  bool missing = false;
  const auto info = [&](const char* name) {
    const pinrail_param_info_t found = info_of(host, std::string(prefix) + name);
    missing = missing || found.name == nullptr;
    return found;
  };
  Settings settings;
  settings.prefix = prefix;
  const pinrail_param_info_t kept = info("leave_pinned");
  const bool by_option = config.leave_pinned != PINRAIL_UNSET && kept.source != PINRAIL_SOURCE_OVERRIDE;
  settings.leave_pinned = (by_option ? config.leave_pinned : kept.typed.i) != 0;
  settings.limits.bytes = limit_of(info("size_limit"), config.size_limit, &settings.limits.explicit_bytes);
  settings.limits.count = limit_of(info("count_limit"), config.count_limit, &settings.limits.explicit_count);
  settings.empty_cache = info("empty_cache").typed.i != 0;
  settings.print_stats = info("print_stats").typed.i != 0;
  settings.gc_interval_ms = info("gc_interval").typed.u;
  settings.max_reg_size = info("max_reg_size").typed.u;
  if (missing) return PINRAIL_ERR_ERROR;
  *settings_out = settings;
  return success();
}

}  // namespace pinrail::gpu_pool
