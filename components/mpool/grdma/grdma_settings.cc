// SPDX-License-Identifier: BSD-3-Clause
// API context, while a pool is made. The caller holds no lock.
#include "components/mpool/grdma/grdma_settings.h"

namespace pinrail::grdma {
namespace {

// The strongest of: an override file's value, the creator's option, the parameter.
class Resolver {
 public:
  explicit Resolver(const pinrail_host_t* host) : host_(host) {}

  pinrail_param_info_t info(const char* full_name) {
    pinrail_param_info_t info{};
    info.size = sizeof(info);
    if (host_->param_info(host_, full_name, &info) != PINRAIL_SUCCESS) missing_ = true;
    return info;
  }

  // Where the component's own parameter is not set, the parameters answer with the global leave_pinned.
  int64_t leave_pinned(int64_t option) {
    const pinrail_param_info_t own = info("mpool_grdma_leave_pinned");
    return option != PINRAIL_UNSET && own.source != PINRAIL_SOURCE_OVERRIDE ? option : own.typed.i;
  }

  uint64_t limit(const char* full_name, int64_t option, bool* explicit_out) {
    const pinrail_param_info_t own = info(full_name);
    *explicit_out = option != PINRAIL_UNSET && own.source != PINRAIL_SOURCE_OVERRIDE;
    const uint64_t value = *explicit_out ? static_cast<uint64_t>(option) : own.typed.u;
    return value == 0 ? UINT64_MAX : value;  // 0: no limit
  }

  bool missing() const { return missing_; }

 private:
  const pinrail_host_t* host_;
  bool missing_ = false;
};

// Whether it is unset or a limit.
bool option_is_sane(int64_t option) { return option == PINRAIL_UNSET || option >= 0; }

// E5: resolves leave_pinned: whether idle registrations of host memory may be kept.
Status resolve_leave_pinned(const pinrail_host_t* host, int64_t asked, bool* kept_out) {
  const char* why = "";
  const bool works = host->monitor_works(host, &why) != 0;
  const pinrail_help_arg_t args[] = {{"why", why}};
  if (asked == 1 && !works) {
    host->help(host, "leave_pinned refused", args, 1);
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (asked == -1 && !works) host->help(host, "leave_pinned off", args, 1);
  if (asked != 0 && works && *why != 0) host->help(host, "leave_pinned in part", args, 1);
  *kept_out = asked != 0 && works;
  return success();
}

}  // namespace

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings_out) {
  const bool sane = option_is_sane(config.size_limit) && option_is_sane(config.count_limit) &&
                    (config.leave_pinned == PINRAIL_UNSET || (config.leave_pinned >= -1 && config.leave_pinned <= 1));
  if (!sane) return PINRAIL_ERR_BAD_PARAM;
  Resolver resolver(host);
  Settings settings;
  const int64_t asked = resolver.leave_pinned(config.leave_pinned);
  settings.gpu_leave_pinned = asked != 0;
  const Status kept = resolve_leave_pinned(host, asked, &settings.leave_pinned);
  if (!kept.ok()) return kept;
  settings.limits.bytes = resolver.limit("mpool_grdma_size_limit", config.size_limit, &settings.limits.explicit_bytes);
  settings.limits.count =
      resolver.limit("mpool_grdma_count_limit", config.count_limit, &settings.limits.explicit_count);
  settings.gc_limit = resolver.info("mpool_grdma_gc_limit").typed.u;
  const int64_t gc_thread = resolver.info("mpool_grdma_gc_thread").typed.i;
  const bool is_caller_only = config.limits->thread_mode == PINRAIL_THREAD_CALLER;
  settings.gc_thread_insisted = gc_thread == 1 && !is_caller_only;
  settings.gc_thread = settings.gc_thread_insisted || (gc_thread == -1 && settings.leave_pinned && !is_caller_only);
  settings.max_reg_size = resolver.info("mpool_grdma_max_reg_size").typed.u;
  settings.empty_cache = resolver.info("mpool_grdma_empty_cache").typed.i != 0;
  settings.print_stats = resolver.info("mpool_grdma_print_stats").typed.i != 0;
  const char* rcache = resolver.info("mpool_grdma_rcache_name").typed.s;
  settings.rcache_name = rcache != nullptr ? rcache : "";
  const char* gpu_registrar = resolver.info("mpool_grdma_gpu_registrar").typed.s;
  settings.gpu_registrar = gpu_registrar != nullptr ? gpu_registrar : "";
  if (resolver.missing()) return PINRAIL_ERR_ERROR;
  *settings_out = settings;
  return success();
}

}  // namespace pinrail::grdma
