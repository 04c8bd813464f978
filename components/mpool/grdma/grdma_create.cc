// SPDX-License-Identifier: BSD-3-Clause
// Makes a pool from its parameters, its creator's options and the registrar that it was given. API context; the caller
// holds no lock, and no other thread knows the pool until create() returns, except the gc thread and hooks.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
           const pinrail_registrar_t* knows_gpu)
    : Base(component, config, settings, config.limits->granularity, 0),
      knows_gpu_(knows_gpu),
      outside_(shortcut::of(host_)->chunks, HookLocks::of(host_)),
      extents_(settings.all_rights, knows_gpu != nullptr ? 0 : settings.extent) {}

// Waits for hooks in flight.
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
}

// A pool of host memory, with a second one of GPU memory if the settings name a registrar for it. NOT_SUPPORTED: the
// registrar does not take host memory.
Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
  if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  Settings settings;
  const Status read = read_settings(component->host, config, &settings);
  if (!read.ok()) return read;
  std::unique_ptr<Gpu> gpu;
  Status status = success();
  if (!settings.gpu_registrar.empty()) status = Gpu::create(component, config, settings, &gpu);
  if (status.ok()) status = create_one(component, config, settings, nullptr, pool_out);
  if (status.ok()) (*pool_out)->gpu_ = std::move(gpu);
  return status;
}

// One pool, in its cache, connected and in the gc thread.
Status Pool::create_one(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                        const pinrail_registrar_t* knows_gpu, Pool** pool_out) {
  const auto drop = [](Pool* unused) { delete unused; };
  std::unique_ptr<Pool, decltype(drop)> pool(new Pool(component, config, settings, knows_gpu), drop);
  Status status = pool->join_cache(settings.limits);
  if (status.ok() && settings.leave_pinned) status = pool->reasons_.start();
  if (status.ok()) status = pool->connect();
  if (status.ok()) status = pool->join_gc_thread_if_asked();
  if (status.ok()) *pool_out = pool.release();
  return status;
}

Status Pool::join_gc_thread_if_asked() {
  if (!settings_.gc_thread) return success();
  const Status joined = join_gc_thread(drain_entry, 0);
  if (joined.ok()) return joined;
  host_->help(host_, "no gc thread", nullptr, 0);
  return settings_.gc_thread_insisted ? joined : success();
}

// To the index, and to the monitors: from here on hooks come in.
Status Pool::connect() {
  if (cache_->may_refuse_bytes()) extents_.turn_off();
  const Status index = make_index((config_.flags & PINRAIL_POOL_EXACT) != 0 ? uint32_t{PINRAIL_RCACHE_EXACT} : 0);
  if (!index.ok()) return index;
  const uint32_t kind = knows_gpu_ != nullptr ? PINRAIL_KIND_GPU : PINRAIL_KIND_HOST;
  return host_->monitor_subscribe(host_, kind, report_hook, this, &subscription_);
}

}  // namespace pinrail::grdma
