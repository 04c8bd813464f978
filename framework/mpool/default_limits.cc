// SPDX-License-Identifier: BSD-3-Clause
// Start-up context. No function takes a lock.
#include "framework/mpool/default_limits.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/core/files.h"

namespace pinrail::mpool {
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

uint64_t memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_lock_everything()) {
    return UINT64_MAX;
  }
  return limit.rlim_cur;
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
