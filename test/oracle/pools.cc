// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/pools.h"

#include <cstdio>
#include <vector>

#include "test/oracle/deaf.h"

namespace pinrail::oracle {
namespace {

using Number = unsigned long long;

pinrail_status_t init(const Options& options) {
  std::vector<pinrail_setting_t> settings = tools::settings_of(options.mca);
  // Nothing is reported: the program could, as "external" says, and does not.
  if (!options.monitor.empty()) {
    settings.push_back({"monitor", options.monitor == "none" ? "external" : options.monitor.c_str()});
  }
  const pinrail_setting_t folder = {"mca_base_component_path", component_folder()};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.defaults = &folder;
  init.default_count = folder.value == nullptr ? 0 : 1;
  init.settings = settings.data();
  init.setting_count = settings.size();
  return pinrail_init(&init);
}

pinrail_status_t create(const Options& options, const char* mpool, const char* cache, size_t limit,
                        pinrail_mpool_t** pool_out) {
  pinrail_registrar_choice_t registrar{};
  registrar.name = options.registrar.c_str();
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  wanted.leave_pinned = 1;
  if (limit != 0) wanted.size_limit = static_cast<int64_t>(limit);
  return pinrail_mpool_create(mpool, &registrar, cache, &wanted, pool_out);
}

std::string figures_of(const char* name, pinrail_mpool_t* pool) {
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pool == nullptr || pinrail_mpool_read_stats(pool, &stats) != PINRAIL_SUCCESS) return "";
  char line[256];
  std::snprintf(
      line, sizeof(line), "pool %-9s  %llu hits, %llu misses, %llu evictions, %llu invalidations, %llu races\n", name,
      static_cast<Number>(stats.hits), static_cast<Number>(stats.misses), static_cast<Number>(stats.evictions),
      static_cast<Number>(stats.invalidations), static_cast<Number>(stats.races));
  return line;
}

}  // namespace

Pools::~Pools() {
  if (unlimited_ != nullptr) pinrail_mpool_destroy(unlimited_, PINRAIL_DESTROY_FORCE);
  if (limited_ != nullptr) pinrail_mpool_destroy(limited_, PINRAIL_DESTROY_FORCE);
  if (initialised_) pinrail_finalize();
}

pinrail_status_t Pools::open(const Options& options, std::string* what_out) {
  *what_out = "pinrail_init";
  pinrail_status_t status = init(options);
  if (status != PINRAIL_SUCCESS) return status;
  initialised_ = true;
  *what_out = "a pool on registrar " + options.registrar;
  status = create(options, options.maps_all ? "mrall" : "grdma", "oracle", 0, &unlimited_);
  if (status == PINRAIL_SUCCESS) status = create(options, "grdma", "oracle-limited", options.size_limit, &limited_);
  return status;
}

pinrail_status_t Pools::close() {
  for (pinrail_mpool_t** pool : {&unlimited_, &limited_}) {
    const pinrail_status_t status = *pool == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(*pool, 0);
    if (status != PINRAIL_SUCCESS) return status;
    *pool = nullptr;
  }
  initialised_ = false;
  return pinrail_finalize();
}

std::string Pools::figures() const { return figures_of("unlimited", unlimited_) + figures_of("limited", limited_); }

}  // namespace pinrail::oracle
