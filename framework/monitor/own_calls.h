// SPDX-License-Identifier: BSD-3-Clause
// own_calls.h - allocators of this process that give memory back by system calls of their own, past the C library, as
// those of sanitizers do. A monitor that patches the C library does not see these.
//
// Owns     nothing.
// Threads  find_own_calls(): start-up. The others: one call at a time.
// Hook     OwnCallsProbe::hook().
//
// own_calls/O1  An allocator is found if a block that it was given back went away without a report on the same thread,
//     or if it is a sanitizer's, which keep freed blocks for a while.
// own_calls/O2  Not found is one that keeps what is freed during the trial and returns it past the C library later.
#ifndef PINRAIL_FRAMEWORK_MONITOR_OWN_CALLS_H
#define PINRAIL_FRAMEWORK_MONITOR_OWN_CALLS_H

#include <pinrail/component.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <string>

#include "base/core/span.h"

namespace pinrail::monitor {

// What an allocator may do to memory that it hands out.
constexpr uint32_t kAllocatorEvents = PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_MAP_OVER | PINRAIL_EVENT_REMAP |
                                      PINRAIL_EVENT_REMAP_ONTO | PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_BRK;

// Hears of a range that is about to be given back on this thread.
struct OwnCallsProbe {
  pthread_t thread = pthread_self();
  std::atomic<uintptr_t> base{0}, end{0};
  std::atomic<bool> is_reported{false};

  static void hook(void* probe, uintptr_t base, size_t length);  // own_calls_hook.cc
};

// Who makes such calls, in a sentence for people; empty: nobody was found. The process's malloc and mmap are tried, and
// those of objects that bring their own, with the monitors that are started.
std::string find_own_calls();

// Rises with each object that the process loads.
uint64_t count_loads();

// Objects that bring an allocator or a sanitizer. Found without the loader's lock, which others may hold while they
// wait for this thread.
class Allocators {
 public:
  static constexpr size_t kRoom = 32;

  // Looks anew. The path of one that was not there before; empty: none came.
  std::string look();

 private:
  std::array<uintptr_t, kRoom> bases_{};
  size_t count_ = 0;
};

}  // namespace pinrail::monitor

#endif
