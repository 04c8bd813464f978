// SPDX-License-Identifier: BSD-3-Clause
// gpu_component.h - what the descriptors of gpusm and rgpusm have in common beside framework/mpool/forward.h: common
// parameters, and functions of the table that forward to gpu_pool::Pool. API context; the caller holds no lock.
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_COMPONENT_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_COMPONENT_H

#include "components/common/gpu_pool/gpu_pool.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::gpu_pool {

constexpr pinrail_param_t kCountLimit =
    mpool::count_limit_param("Most allocations known to the pools of one cache, in use or not. 0: no limit.");
constexpr pinrail_param_t kGcInterval = mpool::param(
    "gc_interval", "100",
    "Milliseconds between two looks for memory that its owner freed: so long, at most, is an idle mapping of it "
    "kept. 0: no thread looks; what died goes at the next call that needs the driver, or pinrail_mpool_progress().",
    PINRAIL_TYPE_UNSIGNED, 6, nullptr, 0, 3600000);
constexpr pinrail_param_t kMaxRegSize =
    mpool::max_reg_size_param("Largest piece in bytes that the chunk iterator cuts a buffer into.");

// GPU memory needs no memory monitor, because buffer ids and validity slots show when it ends (E5). So "auto" (-1) of
// leave_pinned means yes. BAD_PARAM: an option is out of range. ERROR: a parameter is not declared.
inline Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* prefix,
                            Settings* settings_out) {
  if (!mpool::options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  mpool::SettingsReader reader(host, prefix);
  reader.read(config, settings_out);
  settings_out->leave_pinned = reader.leave_pinned(config) != 0;
  settings_out->empty_cache = reader.flag("empty_cache");
  settings_out->gc_interval_ms = reader.number("gc_interval");
  return reader.is_complete() ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

inline Pool* pool_of(void* module) { return static_cast<Pool*>(module); }

}  // namespace pinrail::gpu_pool

#endif
