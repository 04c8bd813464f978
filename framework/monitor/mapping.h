// SPDX-License-Identifier: BSD-3-Clause
// mapping.h - what is mapped at an address, and which pages the process has for itself, as the kernel reports it.
//
// Owns     descriptors of /proc/self/maps and /proc/self/pagemap, from open_proc_files() to close_proc_files(), which
//          are closed in forked children.
// Threads  The others may run together, and beside open_proc_files(), of which one runs at a time. close_proc_files()
//          runs alone. API context; no lock may be held, because files are asked by their paths, and the kernel is.
#ifndef PINRAIL_FRAMEWORK_MONITOR_MAPPING_H
#define PINRAIL_FRAMEWORK_MONITOR_MAPPING_H

#include <pinrail/component.h>

#include <string>

#include "base/core/span.h"

namespace pinrail::monitor {

// Keeps the list of mappings open, so that find_mapping() need not open it each time; on failure it does. And the list
// of pages, without which no page counts (mapping/O1).
void open_proc_files();
void close_proc_files();

// Finds the mapping that holds the address, or else the next one above it. False: there is none, or the kernel
// refuses.
bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out);

// The same by reading the whole list, for kernels before 6.11.
bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out);

// Derives the kind of a mapping: of a file from the file's type and file system. path: as in /proc/self/maps.
pinrail_mapping_kind_t kind_of(const std::string& path, bool is_shared, uint64_t device, uint64_t inode);

// The kind's name for messages, for example "shared file".
const char* kind_name(pinrail_mapping_kind_t kind);

// Which pages around a range the process has for itself: to pin them as well faults in and copies
// nothing. And which page frames they are.
//
// mapping/O1  A page counts if it is present, anonymous, mapped by this process alone, and not write-protected by a
//     userfaultfd. So the zero page, pages of files and pages that are shared with a forked child do not: a pin that
//     may write would replace them. Nor do those whose writers wait for the program: so would the pin.

// The largest part of `most` that contains the span, whole pages, in which each page beside the span counts
// (mapping/O1). Just the span if it is not of whole pages, or if the kernel does not tell.
Span own_pages_around(const Span& span, const Span& most);

// The page frames of these whole pages, one a page; 0: the page is not present, or the process may not see frames
// (CAP_SYS_ADMIN when Pinrail starts). False: the kernel does not tell.
bool read_frames(const Span& pages, uint64_t* frames_out);

}  // namespace pinrail::monitor

#endif
