// SPDX-License-Identifier: BSD-3-Clause
// kernel_numbers.h - kernel constants that the headers of older C libraries (Debian 11's) lack although the running
// kernel may have them. Since Linux 5.1 new system calls have the same number on all architectures.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_KERNEL_NUMBERS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_KERNEL_NUMBERS_H

#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#endif
