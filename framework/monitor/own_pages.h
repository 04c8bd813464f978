// SPDX-License-Identifier: BSD-3-Clause
// own_pages.h - which pages around a range the process has for itself: to pin them as well faults in and copies
// nothing. And which page frames they are.
//
// Owns     a descriptor of /proc/self/pagemap, which is closed in forked children.
// Threads  all functions may run together, but open_page_map() and close_page_map() exclude every other. API context;
//          no lock may be held, because the kernel is asked.
//
// own_pages/O1  A page counts if it is present, anonymous, and mapped by this process alone. So the zero page, pages of
//     files and pages that are shared with a forked child do not: a pin that may write would replace them.
#ifndef PINRAIL_FRAMEWORK_MONITOR_OWN_PAGES_H
#define PINRAIL_FRAMEWORK_MONITOR_OWN_PAGES_H

#include "base/core/span.h"

namespace pinrail::monitor {

// Of the kernel, in bytes.
size_t page_size();

// The largest part of `most` that contains the span, whole pages, in which each page beside the span counts
// (own_pages/O1). Just the span if it is not of whole pages, or if the kernel does not tell.
Span own_pages_around(const Span& span, const Span& most);

// The page frames of these whole pages, one a page; 0: the page is not present, or the process may not see frames
// (CAP_SYS_ADMIN when Pinrail starts). False: the kernel does not tell.
bool read_frames(const Span& pages, uint64_t* frames_out);

// Whether an entry of /proc/self/pagemap counts (own_pages/O1), for tests.
bool is_own_page(uint64_t entry);

// Start-up and shut-down: the descriptor. Without it no page counts.
void open_page_map();
void close_page_map();

}  // namespace pinrail::monitor

#endif
