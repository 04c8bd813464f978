// SPDX-License-Identifier: BSD-3-Clause
// fork_marks.h - keeps ranges that a device has pinned out of forked children, where the kernel would share them (F1).
//
// Before Linux 5.12 a pinned page was shared with a forked child like any other page: the process that wrote first got
// a copy. If that was the parent, the device continued with a page that no longer was the parent's. A marked range
// (madvise DONTFORK) does not exist in children. Later kernels copy pinned pages at fork; nothing is marked there.
//
// Owns     the marked ranges, counted per page for the whole process, because the kernel does not count marks.
// Threads  mark() and unmark() may run together; the others at start-up. API context; the callers hold no lock.
//
// A range is marked from before the device pins it until after the device has released it. A page is unmarked only when
// its count falls to 0 by a registration whose memory still exists (R12). A page with a count need not be marked: after
// an invalidation it may be a new, unmarked page. So each registration marks its whole range. A page's mark and its
// count change under one mutex, which is held across the system call.
#ifndef PINRAIL_FRAMEWORK_REGISTRAR_FORK_MARKS_H
#define PINRAIL_FRAMEWORK_REGISTRAR_FORK_MARKS_H

#include <cstdio>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/param/param.h"

namespace pinrail::fork_marks {

// Declares the parameter registrar_fork_marks.
Status declare(param::Registry* params);
// Reads the parameter and the kernel's release.
void start(const param::Registry& params);
// Whether ranges must be marked; after start().
bool needed();

// Whether Linux of that release ("5.10.0-28-amd64") shares pinned pages with forked children. A distribution may have
// backported the copying to an older release; marks are harmless there.
inline bool kernel_shares_pins(const char* release) {
  unsigned major = 0, minor = 0;
  if (std::sscanf(release, "%u.%u", &major, &minor) != 2) return true;
  return major < 5 || (major == 5 && minor < 12);
}

// Marks the pages of the span and counts them. BAD_PARAM: a part is not mapped. OUT_OF_RESOURCE: no memory, or the
// process has as many mappings as the kernel allows (a mark may split some). On an error no page is marked that was not
// before.
Status mark(Span span);
// Uncounts a span that was marked. is_gone: its memory was unmapped and may be another mapping now, so its marks stay.
void unmark(Span span, bool is_gone);

// Re-initialises in a forked child: the marked ranges do not exist there.
void fork_reinit();

}  // namespace pinrail::fork_marks

#endif
