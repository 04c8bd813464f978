// SPDX-License-Identifier: BSD-3-Clause
// API context, while a pool is made. The caller holds no lock.
#include <iterator>

#include "components/mpool/grdma/grdma_settings.h"

namespace pinrail::grdma {
namespace {

// E5: resolves leave_pinned: whether idle registrations of host memory may be kept.
Status resolve_leave_pinned(const pinrail_host_t* host, int64_t asked, bool* kept_out) {
  const char* why = "";
  const bool works = host->monitor_works(host, &why) != 0;
  const pinrail_help_arg_t args[] = {{"why", why}};
  if (asked == 1 && !works) {
    host->help(host, "leave_pinned refused", args, std::size(args));
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (asked == -1 && !works) host->help(host, "leave_pinned off", args, std::size(args));
  if (asked != 0 && works && *why != 0) host->help(host, "leave_pinned in part", args, std::size(args));
  *kept_out = asked != 0 && works;
  return success();
}

// Rounded down to a power of two. 0 where registrations answer only what they were made for, or are not kept; or where
// they are locks of this process, which change what the program may do with the memory beside its buffers.
size_t extent_of(uint64_t asked, const pinrail_mpool_config_t& config, bool is_kept) {
  if (!is_kept || config.limits->pins_nothing != 0 || (config.flags & PINRAIL_POOL_EXACT) != 0 ||
      asked <= config.limits->granularity)
    return 0;
  return size_t{1} << (63 - __builtin_clzll(asked));
}

}  // namespace

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings_out) {
  if (!mpool::options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  mpool::SettingsReader reader(host, "mpool_grdma_");
  Settings settings;
  const int64_t asked = reader.leave_pinned(config);
  settings.gpu_leave_pinned = asked != 0;
  const Status kept = resolve_leave_pinned(host, asked, &settings.leave_pinned);
  if (!kept.ok()) return kept;
  reader.read(config, &settings);
  settings.limits.bounds_idle_only = reader.is_size_limit_default(config);
  settings.gc_limit = reader.number("gc_limit");
  const int64_t gc_thread = reader.choice("gc_thread");
  const bool is_caller_only = config.limits->thread_mode == PINRAIL_THREAD_CALLER;
  settings.gc_thread_insisted = gc_thread == 1 && !is_caller_only;
  settings.gc_thread = settings.gc_thread_insisted || (gc_thread == -1 && settings.leave_pinned && !is_caller_only);
  settings.all_rights = reader.choice("rights") == 1 && (config.flags & PINRAIL_POOL_EXACT) == 0;
  settings.extent = extent_of(reader.number("extent"), config, settings.leave_pinned);
  settings.empty_cache = reader.flag("empty_cache");
  settings.rcache_name = reader.text("rcache_name");
  settings.gpu_registrar = reader.text("gpu_registrar");
  if (!reader.is_complete()) return PINRAIL_ERR_ERROR;
  *settings_out = settings;
  return success();
}

}  // namespace pinrail::grdma
