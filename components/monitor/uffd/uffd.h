// SPDX-License-Identifier: BSD-3-Clause
// uffd.h - mappings that the kernel is asked to watch (userfaultfd), and the thread that reads what happens to them.
//
// Owns     one descriptor and one thread, from start to stop.
// Threads  start, stop, check exclude each other; cover any number together, and with check.
// Hook     the reader thread, from its first poll() to its last.
//
// uffd/U1  A mapping is registered in write-protect mode and never write-protected: no access to it ever faults.
// uffd/U2  The gate is held before an event is read, and released after it was reported: who knows that the memory is
//     gone finds no answer from a cache. The thread that causes an event goes on once it was read.
// uffd/U3  The reader takes no memory and gives none back; it holds no lock but those that hooks may take. So whoever
//     waits for it (munmap of something watched, under whatever locks) is never what it waits for.
// uffd/U4  When stop() has returned nothing is watched, and nobody waits.
// uffd/U5  A forked child has no thread and no watched mapping; it leaves the descriptor alone, but for closing it.
#ifndef PINRAIL_COMPONENTS_MONITOR_UFFD_H
#define PINRAIL_COMPONENTS_MONITOR_UFFD_H

#include <pinrail/component.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/patch/system_call.h"
#include "base/sync/closed_in_child.h"
#include "base/sync/lock.h"

namespace pinrail::uffd {

constexpr size_t kPage = 4096;

// Past libc, whose functions may be patched, or be those of a sanitizer. A result, or -errno.
template <typename... Args>
long kernel_hook(long number, Args... args) {
#if PINRAIL_CAN_PATCH
  return patch::system_call_hook(number,
                                 (long)args...);  // NOLINT: pointers and integers alike, as the kernel takes them
#else
  const long result = syscall(number, args...);
  return result == -1 ? -errno : result;
#endif
}

struct Context {
  Mutex mutex{LockRank::monitor};  // who starts, stops or checks

  const pinrail_host_t* host = nullptr;  // from open to close

  // Written at start, before the reader runs.
  int watch = -1;                          // the userfaultfd
  closed_in_child::Note* note = nullptr;   // of it: a child that shared it would keep munmap() waiting for a reader
  int bell = -1;                           // an eventfd: the reader shall stop
  uint64_t features = 0;                   // that the kernel granted
  std::atomic<uint32_t>* alive = nullptr;  // a page that the kernel wipes in a forked child
  uint64_t most_mappings = 0;              // of the process: with more, nothing new is watched

  // For the probe, which is a subscriber like any pool.
  std::atomic<uintptr_t> probe_base{0}, probe_end{0};
  std::atomic<bool> probe_seen{false};

  pthread_t reader{};
  bool has_reader = false;           // start-up and shut-down only
  std::atomic<bool> lost{false};     // the descriptor does not answer any more
  std::atomic<uint64_t> taken{0};    // mappings of the process when last counted, and what was watched since
  std::atomic<uint64_t> refused{0};  // since then
};

// uffd_watch.cc: the descriptor. NOT_AVAILABLE: this kernel or this user cannot have it; it was said why.
Status open_watch(Context* context);
// The kernel reports of this range from here on, if it is of a kind that it can watch.
bool watch_range(const Context& context, const Span& span);
// Whether the number is still the descriptor's: programs that become daemons close whatever they find.
bool is_watch_open(const Context& context);
bool is_userfaultfd(int file);
// Nothing is watched any more, whatever else refers to the descriptor. Takes no memory.
void unwatch_all(const Context& context);
uint64_t count_mappings();
uint64_t most_mappings_of_process();

// uffd_cover.cc
uint32_t cover(Context* context, const pinrail_mapping_t& mapping);

// uffd_probe.cc: each kind of event on pages of its own must arrive where pools get theirs.
Status try_events(Context* context) REQUIRES(context->mutex);

// uffd_reader_hook.cc: returns when the bell rings, or false when the descriptor is lost.
bool read_events_hook(Context* context);
void probe_hook(void* context, uintptr_t base, size_t length);

// uffd_thread.cc
bool start_reader(Context* context);
void stop_reader(Context* context);

inline bool is_same_process(const Context& context) {
  return context.alive != nullptr && context.alive->load(std::memory_order_relaxed) != 0;  // relaxed: the kernel's
}

}  // namespace pinrail::uffd

#endif
