// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context. No function takes a lock.
#include "base/core/machine.h"

#include "base/core/files.h"
#include "config.h"

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif
#include <dirent.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <set>

namespace pinrail {
namespace {

constexpr const char* kHugepages = "/sys/kernel/mm/hugepages";

// The kernel has one folder for each size, for example hugepages-2048kB. What the array has no room for is left out.
void read_hugepages(pinrail_machine_t* machine) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kHugepages), closedir);
  if (folder == nullptr) return;
  std::set<uint64_t> sizes;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this function's own.
  while (const dirent* entry = readdir(folder.get())) {
    unsigned long long kibibytes = 0;
    if (std::sscanf(entry->d_name, "hugepages-%llukB", &kibibytes) == 1) sizes.insert(kibibytes * 1024);
  }
  std::copy_n(sizes.begin(), std::min(sizes.size(), std::size(machine->hugepage_sizes)), machine->hugepage_sizes);
}

#ifdef HAVE_HWLOC
struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

// Loads memory and processors only, because finding caches and devices takes time. In a process as in files/X1 nothing
// is loaded: hwloc loads plugins that the environment names.
Topology load_topology() {
  if (!trust::in_environment()) return nullptr;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(raw) != 0) return nullptr;
  return topology;
}

// Takes memory size and nodes from hwloc's topology; it has its page sizes from where read_hugepages() has them.
void read_topology(hwloc_topology_t topology, pinrail_machine_t* machine) {
  machine->source = "hwloc";
  // The sum over the nodes and the system's own number differ if memory was added or removed while the system ran, or a
  // container sees a part of the nodes. The smaller one is safe to plan with; pinrail_info names both.
  const uint64_t total = hwloc_get_root_obj(topology)->total_memory;
  if (total != 0) machine->memory = std::min(machine->memory, total);
  machine->numa_nodes = static_cast<unsigned>(std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE)));
}
#endif

}  // namespace

#ifdef HAVE_HWLOC
bool bind_near(int32_t numa_node) {
  const Topology topology = numa_node < 0 ? nullptr : load_topology();
  if (topology == nullptr) return false;
  hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology.get(), static_cast<unsigned>(numa_node));
  if (node == nullptr || hwloc_bitmap_iszero(node->cpuset) != 0) return false;
  return hwloc_set_cpubind(topology.get(), node->cpuset, HWLOC_CPUBIND_THREAD) == 0;
}
#else
bool bind_near(int32_t) { return false; }
#endif

pinrail_machine_t read_machine_of_system() {
  pinrail_machine_t machine{};
  machine.size = sizeof(machine);
  machine.source = "system";
  machine.page_size = static_cast<uint64_t>(std::max(1L, sysconf(_SC_PAGESIZE)));
  machine.memory = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) * machine.page_size;
  machine.numa_nodes = 1;
  read_hugepages(&machine);
  return machine;
}

pinrail_machine_t read_machine() {
  pinrail_machine_t machine = read_machine_of_system();
#ifdef HAVE_HWLOC
  if (const Topology topology = load_topology()) read_topology(topology.get(), &machine);
#endif
  return machine;
}

}  // namespace pinrail
