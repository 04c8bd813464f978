// SPDX-License-Identifier: BSD-3-Clause
// Makes and destroys a pool. API context; the caller holds no lock.
#include <algorithm>
#include <memory>
#include <string>

#include "base/registration/shortcut.h"
#include "components/mpool/odp/odp.h"
#include "framework/mpool/messages.h"
#include "framework/mpool/settings_reader.h"

namespace pinrail::odp {
namespace {

// The largest power of two that is not above the number.
size_t power_of_two(size_t number) {
  size_t power = 1;
  while (power <= number / 2) power *= 2;
  return power;
}

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings) {
  mpool::SettingsReader reader(host, "mpool_odp_");
  settings->limits = reader.limits(config);
  settings->max_reg_size = reader.number("max_reg_size");
  const size_t wanted = reader.number("tile_size");
  const size_t most = config.limits->on_demand_max_length;
  settings->tile_size = std::max(config.limits->granularity, power_of_two(most != 0 ? std::min(most, wanted) : wanted));
  settings->print_stats = reader.flag("print_stats");
  settings->rcache_name = reader.text("rcache_name");
  return reader.is_complete() ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

Status refuse(const pinrail_host_t* host, const char* why) {
  const pinrail_help_arg_t args[] = {{"why", why}};
  host->help(host, "cannot page on demand", args, 1);
  return PINRAIL_ERR_NOT_SUPPORTED;
}

Status check_config(const pinrail_host_t* host, const pinrail_mpool_config_t& config) {
  if (!mpool::options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (config.limits->on_demand == PINRAIL_ON_DEMAND_NONE) {
    return refuse(host, "the registrar does not register memory on demand (for verbs, see registrar_verbs_odp)");
  }
  if (config.limits->thread_mode == PINRAIL_THREAD_CALLER) {
    return refuse(host, "the registrar may be called by its caller only (CALLER), and pools evict from each other");
  }
  if ((config.flags & PINRAIL_POOL_EXACT) != 0) return refuse(host, "the pool was asked for exact ranges (EXACT)");
  return config.leave_pinned != 0 ? success() : refuse(host, "leave_pinned=no was asked for");
}

}  // namespace

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, Cache* cache)
    : page_mask_(config.limits->granularity - 1),
      cache_(cache),
      component_(component),
      host_(component->host),
      epoch_(shortcut::of(component->host)->epoch),
      config_(config),
      limits_of_registrar_(*config.limits),
      settings_(settings) {}

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
  const pinrail_host_t* const host = component->host;
  Settings settings;
  Status status = check_config(host, config);
  if (status.ok()) status = read_settings(host, config, &settings);
  Cache* cache = nullptr;
  if (status.ok()) status = component->caches.join(host, config.cache_name, settings.limits, &cache);
  if (!status.ok()) return status;
  OnUnwind unwound([&] { component->caches.leave(cache); });
  const auto drop_pool = [](Pool* unused) { delete unused; };
  std::unique_ptr<Pool, decltype(drop_pool)> pool(new Pool(component, config, settings, cache), drop_pool);
  status = host->pools->rcache_create(host, settings.rcache_name.c_str(), 0, &pool->rcache_);
  if (!status.ok()) return status;
  unwound.disarm();
  *pool_out = pool.release();
  return success();
}

// BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  if ((flags & PINRAIL_DESTROY_FORCE) == 0 && !cache_->is_idle_or_reported(host_, this)) return PINRAIL_ERR_BUSY;
  if (settings_.print_stats) {
    pinrail_mpool_stats_t totals{};
    stats(&totals);
    mpool::report_stats(host_, totals);
  }
  release_all(thread);
  cache_->wait_for_evictors();
  cache_list::destroy_index(host_, &rcache_);
  component_->caches.leave(cache_);
  delete this;
  return success();
}

void Pool::release_all(pinrail_thread_t* thread) {
  for (;;) {
    give_back_displaced(thread);
    pinrail_registration_t* const reg = cache_->take_any_of(this);
    if (reg == nullptr) return;
    release_one(thread, reg);
  }
}

// A referenced one becomes an orphan: its handles may still be deregistered.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const bool is_held = state::references(state::load(reg)) != 0;
  Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: it was never in it
  Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, PINRAIL_REASON_FINALIZED)).ignore();
  cache_->repay(area_of(reg).charge);
  if (is_held) {
    host_->registrations->orphan(host_, reg);
  } else {
    host_->registrations->free(host_, reg);
  }
}

}  // namespace pinrail::odp
