// SPDX-License-Identifier: BSD-3-Clause
// mapping.h - what is mapped at an address, as the kernel tells.
//
// Threads  all functions may run together. API context.
#ifndef PINRAIL_FRAMEWORK_MONITOR_MAPPING_H
#define PINRAIL_FRAMEWORK_MONITOR_MAPPING_H

#include <pinrail/component.h>

#include <string_view>

namespace pinrail::monitor {

// The mapping that this address lies in, or the next one behind it. False: there is none, or the kernel does not tell.
bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out);

// The same by reading the whole list, where kernels before 6.11 have nothing better.
bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out);

// path: as /proc/self/maps shows it.
pinrail_mapping_kind_t kind_of(std::string_view path, bool is_shared, uint64_t inode);

// "shared file", for people.
const char* kind_name(pinrail_mapping_kind_t kind);

}  // namespace pinrail::monitor

#endif
