// SPDX-License-Identifier: BSD-3-Clause
// memory_events.h - what a process can do to its memory, as data: each event can be looked up, probed and fired.
//
// Owns     nothing. Who prepares memory has it until it goes out of scope.
// Threads  any number, each with memory of its own; but while an event of kind "heap" is fired nobody else may move
//          the program's break. The table is constant.
//
// memory_events/V1  fire() really does what its name says, through libc, or with Way::raw without it, by the
//     processor's own instruction.
// memory_events/V2  Afterwards all of the memory is mapped, readable and writable again, and its contents are what the
//     event says. Base is the same as before, unless another thread took the place meanwhile, or an allocator or the
//     kernel is asked for memory "anywhere" (Place::maybe): then the old addresses are not the caller's any more.
// memory_events/V3  What an event takes away is a part of the memory (lost()); a registration that covers any of it is
//     stale afterwards if Pages::replaced.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_EVENTS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_MEMORY_EVENTS_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace pinrail::tools {

// What the memory has to be, for the event to be possible.
enum class MemoryKind : uint8_t {
  anonymous,
  shared_file,   // a memfd, mapped shared
  private_file,  // a memfd, mapped private
  system_v,      // a segment of shmget()
  heap,          // below the program's break
  library,       // the writable data of a library that was loaded
  large_block,   // malloc: big enough for a mapping of its own
  small_block    // malloc: a part of an arena
};

enum class Way : uint8_t { libc, raw, ring };  // ring: by io_uring

// Whether pages that a device pinned before are still those that the process sees.
enum class Pages : uint8_t { replaced, kept };

// What the processor sees after the event in what was lost.
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
  size_t length = 0;  // bytes; 0: it is gone, an event failed half-way

  // The events' own.
  int file = -1;          // shared_file, private_file, library
  size_t shown = 0;       // shared_file: where in the file the memory begins; the file is twice as long
  void* owner = nullptr;  // library: its handle; blocks: what malloc returned
};

struct Extent {
  unsigned char* base;
  size_t length;
};

struct Calls;  // libc's functions, or raw system calls: memory_calls.h

struct MemoryEvent {
  const char*
      name;  // as users type it: "madvise-dontneed"; raw ones end in "-raw", those by io_uring begin with "ring-"
  const char* help;  // one line
  MemoryKind kind;
  Way way;
  Part part;
  Pages pages;
  Contents contents;
  Place place;
  bool (*act)(const Calls& calls, EventMemory* memory);
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

// Memory of the kind that the event needs, all zero.
// length: a multiple of two pages, at most 1 GiB; small blocks are never longer than kSmallBlock, large ones never
// shorter than kLargeBlock, and neither is aligned to pages. NULL and errno if there is none.
constexpr size_t kSmallBlock = size_t{32} << 10;
constexpr size_t kLargeBlock = size_t{128} << 10;
std::unique_ptr<EventMemory> prepare_memory(MemoryKind kind, size_t length);

// False and errno: it did not happen. EBUSY: not now, prepare new memory (heap: somebody has moved the break;
// mremap before Linux 6.17: other events have made several mappings of it).
bool fire_memory_event(const MemoryEvent& event, EventMemory* memory);

// What goes away when it is fired.
Extent lost(const MemoryEvent& event, const EventMemory& memory);

// Empty: kernel and libc here can do it. Else why not, as "madvise: Invalid argument". Fires it once.
std::string why_no_memory_event(const MemoryEvent& event);

}  // namespace pinrail::tools

#endif
