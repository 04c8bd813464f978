// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/odp: forwards to Pool.
#include <algorithm>
#include <memory>

#include "base/core/own_component.h"
#include "components/mpool/odp/odp.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::odp {
namespace {

constexpr char kHelp[] =
#include "components/mpool/odp/odp_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    mpool::size_limit_param(
        "Most bytes that the pools of one cache register on demand, whole tiles. 0: no limit. Nothing of it is pinned; "
        "limits of other pools do not count it."),
    mpool::count_limit_param("Most registrations of the pools of one cache. 0: no limit."),
    mpool::max_reg_size_param("Piece in bytes of the chunk iterator."),
    mpool::param("tile_size", "64M",
                 "Bytes of the address space that one registration covers, a power of two. Larger: fewer misses; the "
                 "device's tables and what a key opens to peers grow with it. The device's page size: a registration "
                 "covers what was asked for, and no more.",
                 PINRAIL_TYPE_SIZE, 5, nullptr, 4096, INT64_MAX),
    mpool::kRcacheName,
    mpool::kPrintStats,
};

using Forward = mpool::Forward<Component, Pool>;

// Memory events end no registration (odp/O2).
void invalidate_range_hook(void*, uintptr_t, size_t) {}

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.register_mem = Forward::register_mem;
  ops.invalidate_range_hook = invalidate_range_hook;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

// The largest power of two that is not above the number.
size_t power_of_two(size_t number) {
  size_t power = 1;
  while (power <= number / 2) power *= 2;
  return power;
}

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings) {
  mpool::SettingsReader reader(host, "mpool_odp_");
  reader.read(config, settings);
  settings->rcache_name = reader.text("rcache_name");
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

constexpr pinrail_component_t kComponent = with_params(
    describe(
        PINRAIL_MPOOL_ABI, 5, "mpool", "odp",
        "Host memory that is not pinned: the device faults pages in. For working sets larger than what may be pinned.",
        Forward::open, Forward::close, &kOps),
    kHelp, kParams);

}  // namespace

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
  Settings settings;
  Status status = mpool::check_config(component->host, config, "cannot page on demand", unfit(*config.limits));
  if (status.ok()) status = read_settings(component->host, config, &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool> pool(new Pool(component, config, settings));
  status = pool->join_cache(settings.limits);
  if (status.ok()) status = pool->make_index(0);
  if (status.ok()) *pool_out = pool.release();
  return status;
}

}  // namespace pinrail::odp

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::odp::kComponent;
