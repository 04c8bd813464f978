// SPDX-License-Identifier: BSD-3-Clause
// Makes and destroys a pool. API context; the caller holds no lock.
#include <algorithm>
#include <memory>

#include "components/mpool/odp/odp.h"

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
  settings->read(&reader, config);
  const size_t wanted = reader.number("tile_size");
  const size_t most = config.limits->on_demand_max_length;
  settings->tile_size = std::max(config.limits->granularity, power_of_two(most != 0 ? std::min(most, wanted) : wanted));
  return reader.is_complete() ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

// NULL, or why the registrar cannot serve such a pool.
const char* unfit(const pinrail_registrar_t& registrar) {
  if (registrar.on_demand == PINRAIL_ON_DEMAND_NONE) {
    return "the registrar does not register memory on demand (for verbs, see registrar_verbs_odp)";
  }
  return registrar.thread_mode == PINRAIL_THREAD_CALLER
             ? "the registrar may be called by its caller only (CALLER), and pools evict from each other"
             : nullptr;
}

}  // namespace

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
    : Common(component, config, settings, config.limits->granularity, PINRAIL_TRAIT_ON_DEMAND),
      tile_size_(settings.tile_size) {}

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Common** pool_out) {
  Settings settings;
  Status status = cache_list::check_config(component->host, config, "cannot page on demand", unfit(*config.limits));
  if (status.ok()) status = read_settings(component->host, config, &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool> pool(new Pool(component, config, settings));
  status = pool->join();
  if (status.ok()) *pool_out = pool.release();
  return status;
}

// BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  if ((flags & PINRAIL_DESTROY_FORCE) == 0 && !is_idle_or_reported()) return PINRAIL_ERR_BUSY;
  print_stats_if_asked();
  release_all(thread);
  cache_->wait_for_evictors();
  delete this;
  return success();
}

void Pool::release_all(pinrail_thread_t* thread) {
  for (;;) {
    give_back_dead(thread);
    pinrail_registration_t* const reg = cache_->take_any_of(static_cast<Common*>(this));
    if (reg == nullptr) return;
    release_one(thread, reg);
  }
}

void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: it was never in it
  deregister_from_device(thread, reg, PINRAIL_REASON_FINALIZED);
  cache_->repay(area_of(reg).charge);
  if (orphan(reg) == Killed::owned) host_->registrations->free(host_, reg);  // else its last drop does
}

}  // namespace pinrail::odp
