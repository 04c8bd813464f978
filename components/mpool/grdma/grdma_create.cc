// SPDX-License-Identifier: BSD-3-Clause
// Makes a pool from its settings and the registrar that it was given. API context; the caller
// holds no lock, and no other thread knows the pool until create() returns, except the gc thread and hooks.
#include <memory>

#include "base/core/own_component.h"
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
  std::unique_ptr<Pool> pool(new Pool(component, config, settings));
  const Status started = pool->start(PINRAIL_KIND_HOST);
  if (started.ok()) *pool_out = pool.release();
  return started;
}

// kind: of the events that end its registrations.
Status Pool::start(uint32_t kind) {
  Status status = join_cache(settings_.limits);
  if (status.ok() && settings_.leave_pinned) status = reasons_.start();
  if (status.ok()) status = connect(kind);
  if (!status.ok() || !settings_.gc_thread) return status;
  status = join_gc_thread(drain_entry, 0);
  if (status.ok()) return status;
  show(host_, "no gc thread");
  return settings_.gc_thread_insisted ? status : success();
}

// To the index, and to the monitors: from here on hooks come in.
Status Pool::connect(uint32_t kind) {
  if (cache_->may_refuse_bytes()) extents_.turn_off();
  const Status index = make_index((config_.flags & PINRAIL_POOL_EXACT) != 0 ? uint32_t{PINRAIL_RCACHE_EXACT} : 0);
  if (!index.ok()) return index;
  return host_->monitor_subscribe(host_, kind, report_hook, this, &subscription_);
}

// API context, while a pool is made. The caller holds no lock.

namespace {

// E5: resolves leave_pinned: whether idle registrations of host memory may be kept.
Status resolve_leave_pinned(const pinrail_host_t* host, int64_t asked, bool* kept_out) {
  const char* why = "";
  const bool works = host->monitor_works(host, &why) != 0;
  if (asked == 1 && !works) {
    show(host, "leave_pinned refused", {{"why", why}});
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (asked == -1 && !works) show(host, "leave_pinned off", {{"why", why}});
  if (asked != 0 && works && *why != 0) show(host, "leave_pinned in part", {{"why", why}});
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
