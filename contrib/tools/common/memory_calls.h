// SPDX-License-Identifier: BSD-3-Clause
// memory_calls.h - private to memory_events: each call in two ways, through libc or by a raw system call.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_CALLS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_CALLS_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "contrib/tools/common/memory_events.h"

// Kernel constants that the headers of older C libraries (Debian 11's) lack although the running
// kernel may have them. Since Linux 5.1 new system calls have the same number on all architectures.

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

namespace pinrail::tools {

struct Calls {
  int (*munmap)(void* at, size_t length);
  void* (*mmap)(void* at, size_t length, int protection, int flags, int file, off_t offset);
  void* (*mremap)(void* at, size_t length, size_t new_length, int flags, void* to);
  int (*madvise)(void* at, size_t length, int advice);
  ssize_t (*process_madvise)(int process, const iovec* list, size_t count, int advice, unsigned flags);
  int (*remap_file_pages)(void* at, size_t length, int protection, size_t page, int flags);
  int (*brk)(void* at);
  int (*shmdt)(const void* at);
  void* (*shmat)(int segment, const void* at, int flags);
  int (*fallocate)(int file, int mode, off_t offset, off_t length);
  int (*ftruncate)(int file, off_t length);
  int (*truncate)(const char* path, off_t length);
  int (*open)(const char* path, int flags, ...);
};

extern const Calls kLibcCalls, kRawCalls;

// memory_events.cc

// Maps anonymous memory at this address if it is free, else anywhere. NULL and errno on failure.
unsigned char* map_anonymous(const Calls& calls, unsigned char* at, size_t length);
// Attaches a new System V segment at this address (NULL: anywhere); it is removed with its last mapping. NULL and
// errno on failure.
unsigned char* attach_segment(const Calls& calls, unsigned char* at, size_t length, int flags);
bool load_library(EventMemory* memory);
bool take_block(EventMemory* memory);

// memory_calls.cc: creates a shared object without code as a memfd; its writable data has data_bytes bytes and
// begins kLibraryData bytes after the load address. -1 and errno on failure.
constexpr size_t kLibraryData = 4096;
int make_library(size_t data_bytes);

using Event = bool(const Calls& calls, EventMemory* memory);

// memory_fire.cc
Event fire_munmap, fire_munmap_half, fire_munmap_reuse, fire_mmap_over, fire_mremap_move, fire_mremap_onto,
    fire_mremap_dontunmap, fire_mremap_shrink, fire_mremap_back, fire_brk, fire_shmdt, fire_shmat_remap, fire_dlclose,
    fire_free, fire_trim, fire_realloc, fire_fork;

// memory_fire.cc: events that keep the mapping and may replace its pages.
Event fire_dontneed, fire_locked_dontneed, fire_free_pages, fire_remove, fire_guard_install, fire_cold, fire_pageout,
    fire_process_madvise, fire_remap_file_pages, fire_punch_hole, fire_ftruncate, fire_truncate, fire_open_truncate,
    fire_creat, fire_direct_write, fire_uncached_write, fire_map_again, fire_mprotect;

// memory_fire.cc: events by io_uring operations.
Event fire_ring_madvise, fire_ring_fallocate, fire_ring_ftruncate, fire_ring_open_truncate;

}  // namespace pinrail::tools

#endif
