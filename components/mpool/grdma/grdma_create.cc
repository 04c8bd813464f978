// SPDX-License-Identifier: BSD-3-Clause
// A pool from its parameters, its creator's options and the registrar that it was given.
#include <new>

#include "components/mpool/grdma/grdma_gpu.h"

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

  // The parameters see to it that the global leave_pinned stands in for ours where ours was not set.
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

bool option_is_sane(int64_t option) { return option == PINRAIL_UNSET || option >= 0; }

// E5: whether idle registrations of host memory may be kept.
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

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
    : component_(component), host_(component->host), config_(config), settings_(settings) {}

Pool::~Pool() = default;

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
  if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  Settings settings;
  const Status read = read_settings(component->host, config, &settings);
  if (!read.ok()) return read;
  std::unique_ptr<Gpu> gpu;
  Status status = success();
  if (!settings.gpu_registrar.empty()) status = Gpu::create(component, config, settings, &gpu);
  if (!status.ok()) return status;
  status = create_one(component, config, settings, nullptr, pool_out);
  if (status.ok()) {
    (*pool_out)->gpu_ = std::move(gpu);
  } else if (gpu != nullptr) {
    gpu->give_up();
  }
  return status;
}

Status Pool::create_one(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                        const pinrail_registrar_t* knows_gpu, Pool** pool_out) {
  const auto drop = [](Pool* unused) { delete unused; };
  std::unique_ptr<Pool, decltype(drop)> pool(new Pool(component, config, settings), drop);
  pool->limits_of_registrar_ = *config.limits;
  pool->page_mask_ = config.limits->granularity - 1;
  pool->knows_gpu_ = knows_gpu;
  const Status joined = pool->join_cache(config.cache_name);
  if (!joined.ok()) return joined;
  Status connected = pool->join_gc_thread();
  if (connected.ok()) connected = pool->connect();
  if (!connected.ok()) {
    pool->leave_gc_thread();
    pool->leave_cache();
    return connected;
  }
  *pool_out = pool.release();
  return success();
}

Status Pool::join_cache(const char* cache_name) {
  const Status joined = component_->caches.join(host_, cache_name, settings_.limits, &cache_, host_->epoch);
  if (!joined.ok()) return joined;
  const Status listed = cache_->add_pool(this);
  if (!listed.ok()) component_->caches.leave(cache_);
  return listed;
}

void Pool::leave_cache() {
  cache_->remove_pool(this);
  component_->caches.leave(cache_);
}

// Before hooks come in. What it finds in a pool that is not whole yet is that nothing is dead.
Status Pool::join_gc_thread() {
  if (!settings_.gc_thread) return success();
  const Status joined = host_->gc_join(host_, drain_entry, this, 0, &gc_member_);
  if (joined.ok()) return joined;
  host_->help(host_, "no gc thread", nullptr, 0);
  return settings_.gc_thread_insisted ? joined : success();
}

// It does not drain this pool any more.
void Pool::leave_gc_thread() {
  if (gc_member_ != nullptr) host_->gc_leave(host_, gc_member_);
}

// To the index, and to the monitors: from here on hooks come in.
Status Pool::connect() {
  const uint32_t flags = (config_.flags & PINRAIL_POOL_EXACT) != 0 ? uint32_t{PINRAIL_RCACHE_EXACT} : 0;
  const Status index = host_->rcache_create(host_, settings_.rcache_name.c_str(), flags, &rcache_);
  if (!index.ok()) return index;
  start_table_ = rcache_.ops->start_table(rcache_.module);
  const uint32_t kind = knows_gpu_ != nullptr ? PINRAIL_KIND_GPU : PINRAIL_KIND_HOST;
  const Status subscribed = host_->monitor_subscribe(host_, kind, report_hook, this, &subscription_);
  if (!subscribed.ok()) rcache_.ops->destroy(rcache_.module);
  return subscribed;
}

}  // namespace pinrail::grdma
