// SPDX-License-Identifier: BSD-3-Clause
// machine.h - page sizes, memory size and NUMA nodes of the machine.
//
// Threads  All functions may run together.
// Context  start-up or API; they allocate and read files.
// Errors   None. What cannot be found out gets the smallest value: one node, small pages only.
#ifndef PINRAIL_BASE_CORE_MACHINE_H
#define PINRAIL_BASE_CORE_MACHINE_H

#include <pinrail/listing.h>

#include <cstdint>

namespace pinrail {

// Reads them with hwloc if it is built in, works and is trusted (files/X1); otherwise as read_machine_of_system(). The
// limits are left 0.
pinrail_machine_t read_machine();

// Asks the system without hwloc. numa_nodes is always 1.
pinrail_machine_t read_machine_of_system();

// Binds the calling thread to the processors of the NUMA node, by hwloc. False: there is no such node, or no hwloc.
bool bind_near(int32_t numa_node);

}  // namespace pinrail

#endif
