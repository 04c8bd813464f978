// SPDX-License-Identifier: BSD-3-Clause
// own_calls.h - allocators of this process that return memory by raw system calls, without the C library, as those of
// sanitizers do. A monitor that patches the C library does not see these calls.
//
// Owns     nothing.
// Threads  find_raw_callers(): start-up, without a lock held. The others: one call at a time, API context.
// Hook     OwnCallsProbe::report_hook().
//
// An allocator is found if a block that was freed to it is unmapped without a report on the same thread, or if it
// belongs to a sanitizer, because those keep freed blocks for a while. An allocator that keeps freed memory during the
// trial and returns it by raw system calls later is found if it is a library whose code shows such calls, or by a
// LateTrial. One whose code gets the numbers of its calls from elsewhere, and that unmaps none of the blocks of a
// LateTrial, is not found.
#ifndef PINRAIL_FRAMEWORK_MONITOR_OWN_CALLS_H
#define PINRAIL_FRAMEWORK_MONITOR_OWN_CALLS_H

#include <pinrail/component.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <string>

namespace pinrail::monitor {

// The events that an allocator may cause for memory that it allocated.
constexpr uint32_t kAllocatorEvents = PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_MAP_OVER | PINRAIL_EVENT_REMAP |
                                      PINRAIL_EVENT_REMAP_ONTO | PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_BRK;

// A subscriber that notes whether the release of a range is reported on this thread.
struct OwnCallsProbe {
  pthread_t thread = pthread_self();
  std::atomic<uintptr_t> base{0}, end{0};
  std::atomic<bool> is_reported{false};

  static void report_hook(void* probe, uintptr_t base, size_t length);
};

// Returns a sentence that names an allocator with such calls; empty if none was found. Tries the process's malloc and
// mmap and the allocators of other loaded objects, under the monitors that are started.
std::string find_raw_callers();

// A trial of the process's malloc while it is in use: some blocks are freed, and their memory is watched from then on.
// For an allocator that unmaps what was freed only later. Nothing is tried if malloc is the C library's.
//
// Threads  report_hook() at any time; the others one call at a time, API context.
class LateTrial {
 public:
  // True: memory that the last call had freed was unmapped since, and no event was reported. Frees new blocks.
  bool finds_raw_calls();
  // Ends the watch. Shut-down.
  void end();

 private:
  struct Block {
    std::atomic<uintptr_t> page{0};  // in its middle; 0: none
    std::atomic<bool> is_reported{false};
  };
  static void report_hook(void* trial, uintptr_t base, size_t length);
  bool was_unmapped_unseen() const;
  void free_blocks();

  std::array<Block, 4> blocks_{};
  void* subscription_ = nullptr;
};

// The path of a loaded object; a long one is cut off. Empty: there is none.
struct ObjectPath {
  static constexpr size_t kRoom = 512;
  char text[kRoom] = "";
};

// The number of objects that the process has loaded so far.
uint64_t count_loads();

// The loaded objects that contain an allocator or a sanitizer. find_new() does not take the loader's lock: another
// thread may hold it and wait for this thread.
class Allocators {
 public:
  static constexpr size_t kRoom = 32;

  // Scans the loaded objects. Returns the path of one with an allocator that is new since the last scan; empty: none
  // is. Allocates nothing: what one call returns the next one does not.
  ObjectPath find_new();

 private:
  // A loaded object. Another one may be loaded where it was.
  struct Known {
    uintptr_t base = 0;
    size_t path_hash = 0;
    bool operator==(const Known& other) const { return base == other.base && path_hash == other.path_hash; }
  };
  std::array<Known, kRoom> known_{};
  size_t count_ = 0;
};

}  // namespace pinrail::monitor

#endif
