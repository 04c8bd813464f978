// SPDX-License-Identifier: BSD-3-Clause
// Creation of a pool: binds its registrar, then asks the mpool components. API context; the caller holds no lock.
#include "framework/mpool/mpool.h"

#include <cstring>

#include "base/loader/loader.h"
#include "base/report/report.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/default_limits.h"
#include "framework/mpool/params.h"

namespace pinrail::mpool {
namespace {

constexpr char kHelp[] =
#include "framework/mpool/mpool_help.txt"
    ;

pinrail_mpool_config_t config_of(pinrail_mpool* pool, const char* cache_name, const pinrail_mpool_options_t& options) {
  pinrail_mpool_config_t config{};
  config.size = sizeof(config);
  config.pool = pool;
  config.cache_name = cache_name;
  config.registrar = pool->registrar.get();
  config.limits = &pool->registrar->table;
  config.flags = options.flags;
  config.leave_pinned = options.leave_pinned;
  config.size_limit = options.size_limit;
  config.count_limit = options.count_limit;
  return config;
}

// Reports the topic with one argument; returns the status.
Status refuse(const char* topic, const char* key, const char* value, pinrail_status_t status) {
  report::help("mpool", kHelp, topic, {{key, value}});
  return status;
}

// Whether the functions that are not optional are there.
bool is_complete(const pinrail_mpool_ops_t& ops) {
  return ops.create != nullptr && ops.destroy != nullptr && ops.referenced != nullptr && ops.register_mem != nullptr &&
         ops.deregister != nullptr && ops.invalidate_range_hook != nullptr && ops.stats != nullptr &&
         ops.max_reg_size != nullptr && ops.counters != nullptr;
}

// What stands for optional functions that a component leaves out. The API asks for the others itself.
pinrail_status_t find_nothing(void*, pinrail_thread_t*, uintptr_t, size_t, uint64_t, pinrail_handle_t*) {
  return PINRAIL_ERR_NOT_FOUND;
}
pinrail_status_t evict_nothing(void*, pinrail_thread_t*) { return PINRAIL_ERR_NOT_FOUND; }
pinrail_status_t progress_nothing(void*, pinrail_thread_t*) { return PINRAIL_SUCCESS; }
pinrail_status_t check_nothing(void*) { return PINRAIL_SUCCESS; }

pinrail_mpool_ops_t completed(pinrail_mpool_ops_t ops) {
  if (ops.find == nullptr) ops.find = find_nothing;
  if (ops.evict == nullptr) ops.evict = evict_nothing;
  if (ops.progress == nullptr) ops.progress = progress_nothing;
  if (ops.check == nullptr) ops.check = check_nothing;
  return ops;
}

// Whether the pool is for other kinds of memory than the registrar registers.
bool takes_other_memory(const pinrail_mpool_ops_t& ops, const pinrail_registrar_t& registrar) {
  return ops.kinds != 0 && (ops.kinds & registrar.kinds) == 0;
}

// If its component's parameter `check` wants it.
void start_check(const param::Registry& params, pinrail_mpool* pool) {
  const auto check = static_cast<Check>(params.value("mpool_" + pool->name + "_check").i);
  pool->check.reset();
  if (check == Check::off) return;
  pool->check = std::make_unique<HitCheck>(check, pool->registrar.get());
  if (pool->check->can_compare()) return;
  report::help("mpool", kHelp, "check sees nothing",
               {{"name", pool->name.c_str()}, {"registrar", pool->registrar->name.c_str()}});
}

// Creates the module by the first component in the order of priority that has the name (if given) and accepts the
// registrar.
Status create_module(const loader::Loader& loader, const param::Registry& params, const char* name,
                     const pinrail_mpool_config_t& config, pinrail_mpool* pool) {
  for (const loader::Opened& opened : loader.opened("mpool")) {
    if (name != nullptr && std::strcmp(opened.descriptor->name, name) != 0) continue;
    const auto* ops = static_cast<const pinrail_mpool_ops_t*>(opened.descriptor->ops);
    if (!is_complete(*ops)) return refuse("incomplete mpool", "name", opened.descriptor->name, PINRAIL_ERR_ERROR);
    pool->completed_ops = completed(*ops);
    pool->ops = &pool->completed_ops;
    // All of these may throw. No one would destroy a module that exists by then.
    pool->name = opened.descriptor->name;
    pool->verbosity = params.watch("mpool_" + pool->name + "_verbose");
    if (params.value("mpool_" + pool->name + "_print_stats").i != 0) pool->recorder.use_exact_clock();
    start_check(params, pool);
    const Status status =
        loader::answer_of_component([&] { return ops->create(opened.context, &config, &pool->module); });
    if (!status.is(PINRAIL_ERR_NOT_SUPPORTED)) return status;
    if (name == nullptr) continue;
    if (takes_other_memory(*ops, *config.limits)) {
      report::help("mpool", kHelp, "mpool takes other memory",
                   {{"name", name}, {"registrar", pool->registrar->name.c_str()}});
    }
    return status;
  }
  if (name != nullptr) return refuse("no such mpool", "name", name, PINRAIL_ERR_NOT_FOUND);
  return refuse("no mpool takes it", "registrar", pool->registrar->name.c_str(), PINRAIL_ERR_NOT_SUPPORTED);
}

// The kinds of memory of which a registrar must accept one for the named component; 0: any registrar will do.
uint32_t kinds_for(const loader::Loader& loader, const char* name) {
  for (const loader::Opened& opened : loader.opened("mpool")) {
    if (name == nullptr || std::strcmp(opened.descriptor->name, name) != 0) continue;
    return static_cast<const pinrail_mpool_ops_t*>(opened.descriptor->ops)->kinds;
  }
  return 0;
}

constexpr pinrail_enum_value_t kBackings[] = {{0, "slabs"}, {1, "single"}, {0, nullptr}};

// The notes on the slabs of a region that is larger need gigabytes, or do not fit at all.
constexpr int64_t kLargestRegion = int64_t{1} << 40;

constexpr int64_t kMostEvents = int64_t{1} << 24;

constexpr pinrail_param_t kParams[] = {
    param("default_limits", "yes",
          "Derive mpool_grdma_size_limit and mpool_mrall_size_limit, where nothing sets them, from the memory of the "
          "machine, the limits of its control group and of locked memory, and the number of local processes; "
          "pinrail_info shows how. no: they are unlimited.",
          PINRAIL_TYPE_BOOL, 4),
    param("base_events", "4096",
          "How many of its last events a pool keeps for pinrail_mpool_events() and pinrail_top, 64 bytes each, rounded "
          "up to a power of two: misses with their reason, memory that went away, refusals, and what was given back. "
          "0: none, and no message explains why a request finds no room.",
          PINRAIL_TYPE_UNSIGNED, 6, nullptr, 0, kMostEvents),
    param("alloc_backing", "slabs",
          "Where pinrail_mpool_alloc takes memory from. slabs: from memory that is registered already. single: each "
          "allocation is a mapping and a registration of its own, which costs a registration each time.",
          PINRAIL_TYPE_ENUM, 6, nullptr, 0, 0, kBackings),
    param("alloc_region", "32M",
          "Bytes that pinrail_mpool_alloc registers at once, rounded up to 2 MiB. Larger: fewer registrations, more "
          "memory that is registered and not used.",
          PINRAIL_TYPE_SIZE, 6, nullptr, 1, kLargestRegion),
    param("alloc_keep", "64M",
          "Bytes of free memory that pinrail_mpool_alloc keeps registered for later allocations. 0: what is free is "
          "given "
          "back as soon as all that was registered with it is.",
          PINRAIL_TYPE_SIZE, 5),
};

// The pools that pin host memory. The pool odp pins none.
void set_default_limits(param::Registry* params) {
  const DefaultLimit limit = default_limit(read_bounds());
  if (limit.bytes == UINT64_MAX) return;
  for (const char* const name : {"mpool_grdma_size_limit", "mpool_mrall_size_limit"}) {
    params->replace_default(name, std::to_string(limit.bytes));
  }
}

}  // namespace

Status declare(param::Registry* params) {
  const Status status = params->declare("mpool", "", kParams, sizeof(kParams) / sizeof(kParams[0]));
  if (status.ok() && params->value("mpool_default_limits").i != 0) set_default_limits(params);
  return status;
}

Status create(const loader::Loader& loader, const param::Registry& params, const char* name,
              const pinrail_registrar_choice_t& registrar, const char* cache_name,
              const pinrail_mpool_options_t& options, std::unique_ptr<pinrail_mpool>* pool_out) {
  auto pool = std::make_unique<pinrail_mpool>();
  pool->is_exact = (options.flags & PINRAIL_POOL_EXACT) != 0;
  const Status bound = registrar::bind(loader, registrar, kinds_for(loader, name), &pool->registrar);
  if (!bound.ok()) return bound;
  pool->registrar->pool = pool.get();
  const Status records = pool->recorder.start(params.value("mpool_base_events").u, &pool->counts);
  if (!records.ok()) return records;
  const pinrail_mpool_config_t config = config_of(pool.get(), cache_name, options);
  const Status made = create_module(loader, params, name, config, pool.get());
  if (!made.ok()) return made;
  pinrail_mpool_stats_t limits{};
  pool->ops->counters(pool->module, &limits);
  pool->recorder.show(pool->name, pool->registrar->name, monitor::names_of_started(), limits);
  pool->page_mask = pool->registrar->table.granularity - 1;
  *pool_out = std::move(pool);
  return success();
}

}  // namespace pinrail::mpool
