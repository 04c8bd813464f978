// SPDX-License-Identifier: BSD-3-Clause
// machine.h - the shape of the machine, as far as memory goes.
//
// Threads  any; start-up or API context: it allocates and reads files.
// Errors   none: what cannot be found out is what every machine has, one node and small pages.
#ifndef PINRAIL_BASE_CORE_MACHINE_H
#define PINRAIL_BASE_CORE_MACHINE_H

#include <array>
#include <cstddef>
#include <cstdint>

namespace pinrail {

constexpr size_t kMaxHugepageSizes = 8;

struct Machine {
  const char* source = "system";  // "hwloc" or "system"
  uint64_t page_bytes = 0;
  uint64_t memory_bytes = 0;
  unsigned numa_nodes = 1;
  std::array<uint64_t, kMaxHugepageSizes> hugepage_bytes{};  // that the kernel knows; rising, 0 behind the last
};

// By hwloc where it is built in, works and is trusted (trust/X1), otherwise what the system says.
Machine read_machine();

// The system alone: always one node.
Machine read_machine_of_system();

}  // namespace pinrail

#endif
