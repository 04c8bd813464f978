// SPDX-License-Identifier: BSD-3-Clause
// Makes a pool from its settings and the registrar that it was given. API context; the caller
// holds no lock, and no other thread knows the pool until create() returns, except the gc thread and hooks.
#include <memory>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, size_t own_tail)
    : Base(component, config, settings, config.limits->granularity, 0),
      own_tail_(own_tail),
      outside_(shortcut::of(host_)->chunks, HookLocks::of(host_)),
      extents_(settings.all_rights, settings.extent) {}

// Waits for hooks in flight.
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
}

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                    Pool** pool_out) {
  const auto drop = [](Pool* unused) { delete unused; };
  std::unique_ptr<Pool, decltype(drop)> pool(new Pool(component, config, settings), drop);
  const Status started = pool->start(PINRAIL_KIND_HOST);
  if (started.ok()) *pool_out = pool.release();
  return started;
}

// kind: of the events that end its registrations.
Status Pool::start(uint32_t kind) {
  Status status = join_cache(settings_.limits);
  if (status.ok() && settings_.leave_pinned) status = reasons_.start();
  if (status.ok()) status = connect(kind);
  if (status.ok()) status = join_gc_thread_if_asked();
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
Status Pool::connect(uint32_t kind) {
  if (cache_->may_refuse_bytes()) extents_.turn_off();
  const Status index = make_index((config_.flags & PINRAIL_POOL_EXACT) != 0 ? uint32_t{PINRAIL_RCACHE_EXACT} : 0);
  if (!index.ok()) return index;
  return host_->monitor_subscribe(host_, kind, report_hook, this, &subscription_);
}

}  // namespace pinrail::grdma
