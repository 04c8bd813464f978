// SPDX-License-Identifier: BSD-3-Clause
// refuse.h - a seccomp filter that refuses this process the system calls by which memory goes away.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_REFUSE_H
#define PINRAIL_CONTRIB_TOOLS_INFO_REFUSE_H

namespace pinrail::info {

// From now on munmap, mmap with MAP_FIXED and all other calls that unmap or replace memory fail with EPERM: on all
// threads and for ever. False: the kernel or this architecture has no such filters.
bool refuse_memory_calls();

}  // namespace pinrail::info

#endif
