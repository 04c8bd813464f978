// SPDX-License-Identifier: BSD-3-Clause
// Creation of a pool: binds its registrar, then asks the mpool components. API context; the caller holds no lock. And
// the default limits.
#include "framework/mpool/mpool.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/core/files.h"
#include "base/report/report.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/params.h"

namespace pinrail::mpool {
namespace {

constexpr char kHelp[] =
#include "framework/mpool/mpool_help.txt"
    ;

pinrail_mpool_config_t config_of(pinrail_mpool* pool, const char* cache_name, const pinrail_mpool_options_t& options) {
  auto config = sized<pinrail_mpool_config_t>();
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

// With functions that stand for optional ones that the component leaves out. The API asks for the others itself.
pinrail_mpool_ops_t completed(pinrail_mpool_ops_t ops) {
  if (ops.find == nullptr) ops.find = [](auto...) { return PINRAIL_ERR_NOT_FOUND; };
  if (ops.evict == nullptr) ops.evict = [](auto...) { return PINRAIL_ERR_NOT_FOUND; };
  if (ops.progress == nullptr) ops.progress = [](auto...) { return PINRAIL_SUCCESS; };
  if (ops.check == nullptr) ops.check = [](auto...) { return PINRAIL_SUCCESS; };
  return ops;
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
    if (ops->kinds != 0 && (ops->kinds & config.limits->kinds) == 0) {
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
  auto limits = sized<pinrail_mpool_stats_t>();
  pool->ops->counters(pool->module, &limits);
  pool->recorder.show(pool->name, pool->registrar->name, monitor::names_of_started(), limits);
  pool->page_mask = pool->registrar->table.granularity - 1;
  *pool_out = std::move(pool);
  return success();
}

// How many bytes may be registered where no limit is set. Start-up context. No function takes a lock.
namespace {

constexpr uint64_t kMebi = uint64_t{1} << 20;
constexpr uint64_t kLeast = 4096;

// Open MPI, MPICH and its kin (Hydra), Intel MPI, MVAPICH, PALS, Flux and Slurm, in this order.
constexpr const char* kLocalSizes[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE",
                                       "MV2_COMM_WORLD_LOCAL_SIZE",  "PALS_LOCAL_SIZE", "FLUX_TASK_LOCAL_SIZE",
                                       "SLURM_NTASKS_PER_NODE"};

// In a user namespace the kernel shows capabilities that do not lift the limit: only the namespace of the machine maps
// every user id to itself. Without the file there are no user namespaces.
bool is_in_machines_namespace() {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  return !(map >> inside >> outside >> count) || (inside == 0 && outside == 0 && count == UINT32_MAX);
}

bool may_lock_everything() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  const bool is_capable = syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_IPC_LOCK & 1) != 0;
  return is_capable && is_in_machines_namespace();
}

// The number in the file; "max", a missing file, and what version 1 writes for no limit are no bound.
uint64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes && bytes < uint64_t{INT64_MAX} / 2 ? bytes : UINT64_MAX;
}

uint64_t limit_of_group_and_above(const std::string& root, std::string group, const char* name) {
  uint64_t least = UINT64_MAX;
  for (;;) {
    least = std::min(least, limit_in(root + group + "/" + name));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

std::string mebibytes(uint64_t bytes) { return std::to_string(bytes / kMebi) + " MiB"; }

}  // namespace

uint64_t memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_lock_everything()) {
    return UINT64_MAX;
  }
  return limit.rlim_cur;
}

// A line is "number:controllers:path": version 2 has number 0 and no controllers, version 1 the controller memory.
uint64_t cgroup_limit(const std::string& cgroup_file, const std::string& root) {
  std::ifstream groups(cgroup_file);
  uint64_t least = UINT64_MAX;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") least = std::min(least, limit_of_group_and_above(root, path, "memory.max"));
    if (controllers.find(",memory,") == std::string::npos) continue;
    least = std::min(least, limit_of_group_and_above(root + "/memory", path, "memory.limit_in_bytes"));
  }
  return least;
}

unsigned local_processes() {
  if (!trust::in_environment()) return 1;
  for (const char* const name : kLocalSizes) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): start-up
    const char* const text = std::getenv(name);
    const long count = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
    if (count > 0 && count < 1 << 20) return static_cast<unsigned>(count);
  }
  return 1;
}

Bounds read_bounds() {
  Bounds bounds;
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) bounds.memory = static_cast<uint64_t>(pages) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  bounds.cgroup = cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup");
  bounds.memlock = memlock_limit();
  bounds.processes = local_processes();
  return bounds;
}

DefaultLimit default_limit(const Bounds& bounds) {
  const bool by_cgroup = bounds.cgroup < bounds.memory;
  const uint64_t shared = std::min(bounds.memory, bounds.cgroup);
  if (shared == UINT64_MAX && bounds.memlock == UINT64_MAX) return {UINT64_MAX, "nothing bounds it"};
  const unsigned processes = std::max(1U, bounds.processes);
  const uint64_t share = shared == UINT64_MAX ? UINT64_MAX : shared / 4 * 3 / processes;
  DefaultLimit limit;
  if (bounds.memlock < share) {
    limit.bytes = bounds.memlock;
    limit.derivation = "the limit of locked memory (ulimit -l)";
  } else {
    limit.bytes = share;
    limit.derivation = "3/4 of " + mebibytes(shared) + (by_cgroup ? " (limit of the control group)" : " (memory)") +
                       ", for " + std::to_string(processes) + (processes == 1 ? " process" : " local processes");
  }
  const uint64_t unit = limit.bytes >= 16 * kMebi ? kMebi : kLeast;
  limit.bytes = std::max(limit.bytes / unit * unit, kLeast);
  return limit;
}

}  // namespace pinrail::mpool
