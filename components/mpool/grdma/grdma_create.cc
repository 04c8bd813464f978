// SPDX-License-Identifier: BSD-3-Clause
// Makes a pool from its parameters, its creator's options and the registrar that it was given. API context; the caller
// holds no lock, and no other thread knows the pool until create() returns, except the gc thread and hooks.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, Cache* cache,
           const pinrail_registrar_t* knows_gpu)
    : page_mask_(config.limits->granularity - 1),
      cache_(cache),
      component_(component),
      host_(component->host),
      config_(config),
      settings_(settings),
      limits_of_registrar_(*config.limits),
      knows_gpu_(knows_gpu),
      outside_(shortcut::of(host_)->chunks, HookLocks::of(host_)),
      extents_(settings.all_rights, knows_gpu != nullptr || cache->may_refuse_bytes() ? 0 : settings.extent),
      gc_list_(settings.gc_limit) {}

Pool::~Pool() = default;

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
  if (!status.ok()) return status;
  status = create_one(component, config, settings, nullptr, pool_out);
  if (status.ok()) {
    (*pool_out)->gpu_ = std::move(gpu);
  } else if (gpu != nullptr) {
    gpu->discard_unused_ranges();
  }
  return status;
}

// One pool, in its cache, in the gc thread and connected. On failure it has left all of them.
Status Pool::create_one(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                        const pinrail_registrar_t* knows_gpu, Pool** pool_out) {
  Cache* cache = nullptr;
  const Status found = component->caches.join(component->host, config.cache_name, settings.limits, &cache,
                                              shortcut::of(component->host)->chunks);
  if (!found.ok()) return found;
  const auto drop = [](Pool* unused) { delete unused; };
  std::unique_ptr<Pool, decltype(drop)> pool(nullptr, drop);
  Status made = guarded([&] {
    pool.reset(new Pool(component, config, settings, cache, knows_gpu));
    return cache->add_pool(pool.get(), &pool->number_);
  });
  if (!made.ok()) {
    component->caches.leave(cache);
    return made;
  }
  if (settings.leave_pinned) made = pool->reasons_.start();
  if (made.ok()) made = pool->join_gc_thread();
  if (made.ok()) made = pool->connect();
  if (!made.ok()) {
    pool->leave_gc_thread();
    pool->leave_cache();
    return made;
  }
  *pool_out = pool.release();
  return success();
}

// The cache may be deleted with it.
void Pool::leave_cache() {
  cache_->remove_pool(number_);
  component_->caches.leave(cache_);
}

// Before hooks come in. What the thread finds in a pool that is not connected yet is that nothing is dead.
Status Pool::join_gc_thread() {
  if (!settings_.gc_thread) return success();
  const Status joined = host_->pools->gc_join(host_, drain_entry, this, 0, &gc_member_);
  if (joined.ok()) return joined;
  host_->help(host_, "no gc thread", nullptr, 0);
  return settings_.gc_thread_insisted ? joined : success();
}

// Afterwards it is not in a drain of this pool, and calls none.
void Pool::leave_gc_thread() const {
  if (gc_member_ != nullptr) host_->pools->gc_leave(host_, gc_member_);
}

// To the index, and to the monitors: from here on hooks come in.
Status Pool::connect() {
  const uint32_t flags = (config_.flags & PINRAIL_POOL_EXACT) != 0 ? uint32_t{PINRAIL_RCACHE_EXACT} : 0;
  const Status index = host_->pools->rcache_create(host_, settings_.rcache_name.c_str(), flags, &rcache_);
  if (!index.ok()) return index;
  const uint32_t kind = knows_gpu_ != nullptr ? PINRAIL_KIND_GPU : PINRAIL_KIND_HOST;
  const Status subscribed = host_->monitor_subscribe(host_, kind, report_hook, this, &subscription_);
  if (!subscribed.ok()) rcache_.ops.destroy(rcache_.module);
  return subscribed;
}

}  // namespace pinrail::grdma
