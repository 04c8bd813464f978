// SPDX-License-Identifier: BSD-3-Clause
// kernel_numbers.h - constants of the kernel that are missing in the headers of some C libraries (Debian 11's). The
// running kernel may know them even then. System calls that were added since Linux 5.1 have one number on all
// architectures.
#ifndef PINRAIL_BASE_CORE_KERNEL_NUMBERS_H
#define PINRAIL_BASE_CORE_KERNEL_NUMBERS_H

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
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#endif
