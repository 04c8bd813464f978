// SPDX-License-Identifier: BSD-3-Clause
// mapping.h - what is mapped at an address, as the kernel reports it.
//
// Owns     a descriptor of /proc/self/maps, from open_mappings() to close_mappings().
// Threads  The find functions may run together, and beside open_mappings(), of which one runs at a time. They read
//          /proc/self/maps and ask about files by their paths. close_mappings() runs alone. API context; they
//          take no lock.
#ifndef PINRAIL_FRAMEWORK_MONITOR_MAPPING_H
#define PINRAIL_FRAMEWORK_MONITOR_MAPPING_H

#include <pinrail/component.h>

#include <string>

namespace pinrail::monitor {

// Keeps the list of mappings open, so that find_mapping() need not open it each time; on failure it does.
// Throws bad_alloc.
void open_mappings();
void close_mappings();

// Finds the mapping that holds the address, or else the next one above it. False: there is none, or the kernel
// refuses.
bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out);

// The same by reading the whole list, for kernels before 6.11.
bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out);

// Derives the kind of a mapping: of a file from the file's type and file system (file_kind.cc). path: as in
// /proc/self/maps.
pinrail_mapping_kind_t kind_of(const std::string& path, bool is_shared, uint64_t device, uint64_t inode);

// The kind's name for messages, for example "shared file".
const char* kind_name(pinrail_mapping_kind_t kind);

}  // namespace pinrail::monitor

#endif
