// SPDX-License-Identifier: BSD-3-Clause
// memory_events.h - what a process can do to its memory, as a table: each event can be looked up, tried and fired.
//
// Owns     nothing. An EventMemory owns its memory until it is destroyed.
// Threads  any number, each with memory of its own; but while an event of kind "heap" is fired no other thread may
//          move the program's break. The table is constant.
//
// fire_memory_event() really does what the event's name says: through libc, or with Way::raw by the processor's system
// call instruction.
//
// memory_events/V2  Afterwards all of the memory is mapped, readable and writable again, and its contents are as the
//     event says. base is the same as before, unless another thread mapped the place meanwhile, or an allocator or the
//     kernel chooses the address (Place::maybe): then the old addresses no longer belong to the caller.
//
// An event changes a part of the memory (lost()); with Pages::replaced a registration that overlaps that part is stale
// afterwards.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_EVENTS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_EVENTS_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace pinrail::tools {

// The kind of memory that an event needs.
enum class MemoryKind : uint8_t {
  anonymous,
  shared_file,   // a memfd, mapped shared
  private_file,  // a memfd, mapped private
  disk_file,     // an unlinked file in /var/tmp, mapped shared
  system_v,      // a segment of shmget()
  heap,          // below the program's break
  library,       // the writable data of a library that was loaded
  large_block,   // malloc: big enough for a mapping of its own
  small_block    // malloc: a part of an arena
};

enum class Way : uint8_t { libc, raw, ring };  // ring: by io_uring

// Whether the process still sees the pages that a device pinned before the event.
enum class Pages : uint8_t { replaced, kept };

// The contents of the lost part after the event.
enum class Contents : uint8_t { zero, kept, any };

enum class Part : uint8_t { all, second_half };

enum class Place : uint8_t { same, maybe };  // memory_events/V2

struct EventMemory {
  EventMemory() = default;
  ~EventMemory();
  EventMemory(const EventMemory&) = delete;
  EventMemory& operator=(const EventMemory&) = delete;

  MemoryKind kind = MemoryKind::anonymous;
  unsigned char* base = nullptr;
  size_t length = 0;  // bytes; 0: an event failed halfway and the memory is gone

  // Private data of the events.
  int file = -1;          // shared_file, private_file, disk_file, library
  size_t shown = 0;       // shared_file: offset of the memory in the file, which is twice as long
  void* owner = nullptr;  // library: its handle; blocks: what malloc returned
};

struct Extent {
  unsigned char* base;
  size_t length;
};

struct Calls;  // libc's functions, or raw system calls

struct MemoryEvent {
  const char*
      name;  // as users type it: "madvise-dontneed". Raw ones end in "-raw", those by io_uring begin with "ring-"
  const char* help;  // one line
  MemoryKind kind;
  bool (*act)(const Calls& calls, EventMemory* memory);
  Part part = Part::all;
  Pages pages = Pages::replaced;
  Contents contents = Contents::zero;
  Place place = Place::same;

  Way way() const;
};

struct MemoryEvents {
  const MemoryEvent* first;
  size_t count;
  const MemoryEvent* begin() const { return first; }
  const MemoryEvent* end() const { return first + count; }
};

MemoryEvents memory_events();
const MemoryEvent* find_memory_event(const std::string& name);  // NULL: there is none
const char* memory_kind_name(MemoryKind kind);

// Prepares memory of the kind, filled with zeros. length: a multiple of two pages, at most 1 GiB; small blocks have at
// most kSmallBlock bytes and large blocks at least kLargeBlock, and neither is page-aligned. NULL and errno on
// failure.
constexpr size_t kSmallBlock = size_t{32} << 10;
constexpr size_t kLargeBlock = size_t{128} << 10;
std::unique_ptr<EventMemory> prepare_memory(MemoryKind kind, size_t length);

// Where memory of the heap is used. An event moves the break, and back: malloc would move it before, or what malloc
// took above would be cut off. So the first arena gets all that it may need in advance.
void keep_malloc_off_the_break();

// Fires the event. False and errno: it did not happen. EBUSY: it cannot happen to this memory now, so prepare new
// memory (heap: another thread moved the break; mremap before Linux 6.17: earlier events split the memory into several
// mappings).
bool fire_memory_event(const MemoryEvent& event, EventMemory* memory);

// The part of the memory that the event changes.
Extent lost(const MemoryEvent& event, const EventMemory& memory);

// Why this kernel or libc cannot do the event, as "madvise: Invalid argument"; empty if it can. Fires it once.
std::string why_no_memory_event(const MemoryEvent& event);

}  // namespace pinrail::tools

// Private to memory_*.cc and the trials of monitors: each call in two ways, through libc or by a raw system call.

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
