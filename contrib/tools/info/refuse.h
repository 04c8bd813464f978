// SPDX-License-Identifier: BSD-3-Clause
// refuse.h - from here on the kernel refuses this process to take memory away.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_REFUSE_H
#define PINRAIL_CONTRIB_TOOLS_INFO_REFUSE_H

namespace pinrail::info {

// munmap, mmap with MAP_FIXED, and whatever else memory goes away by, fail with EPERM: for all threads, for good.
// False: this kernel has no filters, or this machine is another one.
bool refuse_memory_calls();

}  // namespace pinrail::info

#endif
