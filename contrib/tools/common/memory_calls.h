// SPDX-License-Identifier: BSD-3-Clause
// memory_calls.h - private to memory_events: each call in two ways, through libc or by a raw system call.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_CALLS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_CALLS_H

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "contrib/tools/common/memory_events.h"

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
inline const Calls& calls_of(Way way) { return way == Way::raw ? kRawCalls : kLibcCalls; }

// memory_prepare.cc

// Maps anonymous memory at this address if it is free, else anywhere. NULL and errno on failure.
unsigned char* map_anonymous(const Calls& calls, unsigned char* at, size_t length);
// Attaches a new System V segment at this address (NULL: anywhere); it is removed with its last mapping. NULL and
// errno on failure.
unsigned char* attach_segment(const Calls& calls, unsigned char* at, size_t length, int flags);
bool load_library(EventMemory* memory);
bool take_block(EventMemory* memory);

// memory_library.cc: creates a shared object without code as a memfd; its writable data has data_bytes bytes and
// begins kLibraryData bytes after the load address. -1 and errno on failure.
constexpr size_t kLibraryData = 4096;
int make_library(size_t data_bytes);

// memory_fire.cc
bool fire_munmap(const Calls& calls, EventMemory* memory);
bool fire_munmap_half(const Calls& calls, EventMemory* memory);
bool fire_munmap_reuse(const Calls& calls, EventMemory* memory);
bool fire_mmap_over(const Calls& calls, EventMemory* memory);
bool fire_mremap_move(const Calls& calls, EventMemory* memory);
bool fire_mremap_onto(const Calls& calls, EventMemory* memory);
bool fire_mremap_dontunmap(const Calls& calls, EventMemory* memory);
bool fire_mremap_shrink(const Calls& calls, EventMemory* memory);
bool fire_mremap_back(const Calls& calls, EventMemory* memory);
bool fire_brk(const Calls& calls, EventMemory* memory);
bool fire_shmdt(const Calls& calls, EventMemory* memory);
bool fire_shmat_remap(const Calls& calls, EventMemory* memory);
bool fire_dlclose(const Calls& calls, EventMemory* memory);
bool fire_free(const Calls& calls, EventMemory* memory);
bool fire_trim(const Calls& calls, EventMemory* memory);
bool fire_realloc(const Calls& calls, EventMemory* memory);
bool fire_fork(const Calls& calls, EventMemory* memory);

// memory_fire_pages.cc: events that keep the mapping and may replace its pages.
bool fire_dontneed(const Calls& calls, EventMemory* memory);
bool fire_locked_dontneed(const Calls& calls, EventMemory* memory);
bool fire_free_pages(const Calls& calls, EventMemory* memory);
bool fire_remove(const Calls& calls, EventMemory* memory);
bool fire_guard_install(const Calls& calls, EventMemory* memory);
bool fire_cold(const Calls& calls, EventMemory* memory);
bool fire_pageout(const Calls& calls, EventMemory* memory);
bool fire_process_madvise(const Calls& calls, EventMemory* memory);
bool fire_remap_file_pages(const Calls& calls, EventMemory* memory);
bool fire_punch_hole(const Calls& calls, EventMemory* memory);
bool fire_ftruncate(const Calls& calls, EventMemory* memory);
bool fire_truncate(const Calls& calls, EventMemory* memory);
bool fire_open_truncate(const Calls& calls, EventMemory* memory);
bool fire_creat(const Calls& calls, EventMemory* memory);
bool fire_direct_write(const Calls& calls, EventMemory* memory);
bool fire_uncached_write(const Calls& calls, EventMemory* memory);
bool fire_map_again(const Calls& calls, EventMemory* memory);
bool fire_mprotect(const Calls& calls, EventMemory* memory);

// memory_fire_ring.cc: events by io_uring operations.
bool fire_ring_madvise(const Calls& calls, EventMemory* memory);
bool fire_ring_fallocate(const Calls& calls, EventMemory* memory);
bool fire_ring_ftruncate(const Calls& calls, EventMemory* memory);
bool fire_ring_open_truncate(const Calls& calls, EventMemory* memory);

}  // namespace pinrail::tools

#endif
