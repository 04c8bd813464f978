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

struct Calls;  // libc's functions, or raw system calls: memory_calls.h

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

#endif
