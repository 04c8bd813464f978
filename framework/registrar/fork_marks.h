// SPDX-License-Identifier: BSD-3-Clause
// fork_marks.h - ranges that a device has pinned are kept out of forked children where the kernel would share them
// (F1).
//
// Until Linux 5.12 a page that a device has pinned was shared with a forked child like any other: who wrote first,
// parent or child, got a copy, and if it was the parent, the device went on with a page that was no longer his. A range
// that is marked (madvise DONTFORK) is missing in children instead. Later kernels copy pinned pages; there nothing is
// marked.
//
// Owns     which ranges are marked, counted for the whole process, for marks know no count.
// Threads  mark() and unmark() may run together; the others at start-up. API context.
//
// fork_marks/K1  A range is marked from before the device pins it until after the device let go.
// fork_marks/K2  A page is unmarked only when its count falls to 0 by a registration whose memory is still there (R12).
// fork_marks/K3  A count says nothing of the mark: after an invalidation pages of a counted range may be new and
//     unmarked. So each registration marks its whole range.
// fork_marks/K4  A page's mark and its count change under one mutex, which is held across the system call.
#ifndef PINRAIL_FRAMEWORK_REGISTRAR_FORK_MARKS_H
#define PINRAIL_FRAMEWORK_REGISTRAR_FORK_MARKS_H

#include <cstdio>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/param/param.h"

namespace pinrail::fork_marks {

// The parameter registrar_fork_marks.
Status declare(param::Registry* params);
// Reads it, and the kernel's release.
void start(const param::Registry& params);
bool needed();

// Whether Linux of that release ("5.10.0-28-amd64") shares pinned pages with forked children. Distributions may have
// brought the copying to older ones; marks do no harm there.
inline bool kernel_shares_pins(const char* release) {
  unsigned major = 0, minor = 0;
  if (std::sscanf(release, "%u.%u", &major, &minor) != 2) return true;
  return major < 5 || (major == 5 && minor < 12);
}

// BAD_PARAM: a part is not mapped. OUT_OF_RESOURCE: no memory, or the process has all the mappings that the kernel
// grants (each mark may split some). Nothing is marked then that was not.
Status mark(Span span);
// For a span that was marked. is_gone: its memory was unmapped and may be somebody else's.
void unmark(Span span, bool is_gone);

// In a forked child: what the parent marked is not here.
void fork_reinit();

}  // namespace pinrail::fork_marks

#endif
