// SPDX-License-Identifier: BSD-3-Clause
// uffd.h - monitor/uffd: the mappings that the kernel watches (userfaultfd), and the thread that reads their events.
//
// Owns     one descriptor and one thread, from start to stop.
// Threads  start, stop and check exclude each other (Context::mutex). cover() may run together with itself and with
//          check.
// Hook     read_events_hook(), which is the reader thread from its first poll() to its last. Other functions run at
//          start-up or in API context.
//
// A mapping is registered in write-protect mode and is never write-protected, so no access to it ever faults.
//
// uffd/U2  The gate is held before an event is read and released after it was reported: a caller that knows that the
//     memory is gone gets no answer from a cache. The thread that causes an event continues as soon as the event is
//     read.
//     The kernel reports an unmapping after it is done, but it counts the event before. Each call asks for that count
//     first (is_quiet), so that it finds the gate held if another thread was given the memory meanwhile.
// uffd/U3  The reader neither allocates nor frees memory and takes only locks that hooks may take. While it waits for
//     one it continues to read events. So a thread that waits for it (in munmap of a watched mapping, under whatever
//     locks, also in a signal handler) never waits for a lock that its own thread holds.
//
// When stop() has returned, this descriptor watches nothing and no thread waits for the reader. What other descriptors
// of the process watch stays watched. A forked child has neither the thread nor a watched mapping. It only closes the
// descriptor.
#ifndef PINRAIL_COMPONENTS_MONITOR_UFFD_H
#define PINRAIL_COMPONENTS_MONITOR_UFFD_H

#include <pinrail/component.h>

#include <atomic>

#include "base/core/own_component.h"
#include "base/core/span.h"
#include "base/patch/system_call.h"
#include "base/sync/lock.h"
#include "base/sync/own_file.h"
#include "base/sync/own_threads.h"

namespace pinrail::uffd {

constexpr size_t kPage = 4096;
constexpr uintptr_t kNone = UINTPTR_MAX;  // no page: an unmapping may begin at address 0

using patch::system_call_hook;

struct Context {
  Mutex mutex{LockRank::monitor};  // held by start, stop and check

  const pinrail_host_t* host = nullptr;  // from open to close

  // Written at start, before the reader runs.
  OwnFile watch;  // the userfaultfd. A child that shared it would keep munmap() waiting
  const pinrail_monitor_services_t* own = nullptr;  // of the library, from start to stop
  std::atomic<uint32_t>* alive = nullptr;           // a page that the kernel wipes in a forked child
  uint64_t most_mappings = 0;                       // with more mappings in the process, no further ones are watched

  Probe probe;

  OwnThread reader;                    // start-up and shut-down only
  std::atomic<uintptr_t> bell{kNone};  // the event of this page ends the reader
  std::atomic<bool> stopping{false};   // without a bell: the reader ends when it looks next
  std::atomic<bool> lost{false};       // the descriptor cannot be read any more
  std::atomic<bool> is_closed{false};  // for some thread, which may have descriptors of its own: unshare(CLONE_FILES)
  std::atomic<uint64_t> asked{0};      // how often it was asked to watch a mapping
  std::atomic<uint64_t> mappings{0};   // of the process, when they were last counted
};

// uffd_component.cc. From now on the kernel reports events of this range. False: the kernel cannot watch memory of its
// kind.
bool watch_range(const Context& context, const Span& span);
// Ends all watching by this descriptor, even if a child still has it. Does not allocate.
void unwatch_all(const Context& context);
// Maps memory that is watched and unmapped at once, by a system call of its own. 0: there is none.
uintptr_t map_scratch(size_t length);

// uffd_thread.cc: reads and reports events. Returns true when the bell rings or `stopping` is set, false when the
// descriptor is lost.
bool read_events_hook(Context* context);

// The descriptor is lost, and events that were not read with it: ends all that is cached, before lookups go on (E1).
void lose(Context* context);

// uffd_thread.cc: start-up and shut-down.
bool start_reader(Context* context);
void stop_reader(Context* context);

// False in a forked child.
inline bool is_same_process(const Context& context) {
  // relaxed: the kernel writes it.
  return context.alive != nullptr && context.alive->load(std::memory_order_relaxed) != 0;
}

}  // namespace pinrail::uffd

#endif
