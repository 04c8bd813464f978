// SPDX-License-Identifier: BSD-3-Clause
// Starts and ends the reader thread. Start-up and shut-down context; run() is the thread's function.
#include <linux/userfaultfd.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

// Touches the stack's pages, so that the reader needs no new memory while other threads wait for it.
void touch_stack() {
  constexpr size_t kTouched = size_t{32} << 10;
  volatile char bytes[kTouched];
  for (size_t i = 0; i < kTouched; i += kPage) bytes[i] = 0;
  static_cast<void>(bytes[0]);
}

// The descriptor was closed by the program, or cannot be read. Ends all watching, so that no thread waits for events.
void give_up(Context* context) {
  unwatch_all(*context);
  context->watch.close();
  lose(context);
  const pinrail_host_t* host = context->host;
  const monitor_services::Work work(*context->own);
  show(host, "lost");
  host->monitor_blind(host, "uffd: its descriptor was closed, or cannot be read any more");
}

void run(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  touch_stack();
  if (!read_events_hook(context)) give_up(context);
}

}  // namespace

void lose(Context* context) {
  context->host->monitor_hold_hook(context->host);
  context->lost.store(true);
  context->host->monitor_report_hook(context->host, 0, UINTPTR_MAX);
  context->host->monitor_release_hook(context->host);
}

bool start_reader(Context* context) { return context->reader.start("pinrail-uffd", run, context); }

// Ends the reader by an event of memory that is unmapped for it. If the memory cannot be watched, the reader ends when
// it looks next: its descriptor may be closed, so nothing else wakes it.
void ring_bell(Context* context) {
  const uintptr_t base = map_scratch(kPage);
  if (base != 0 && watch_range(*context, {base, base + kPage})) {
    context->bell.store(base);
  } else {
    context->stopping.store(true);
  }
  if (base != 0) system_call_hook(SYS_munmap, base, kPage);
}

// The reader continues while the mappings are unregistered, so that no thread in munmap() waits for ever.
void stop_reader(Context* context) {
  if (!context->reader.is_started()) return;
  unwatch_all(*context);
  constexpr unsigned kLastOnesMicroseconds = 1000;
  usleep(kLastOnesMicroseconds);  // threads that were in munmap() have queued their events by then. If a child has the
                                  // descriptor as well, closing it here would not wake them
  ring_bell(context);
  context->reader.join();
}

// Hook context: reads events from the kernel and reports them to all subscribers.

namespace {

constexpr size_t kBatch = 16;   // events that one read() returns at most
constexpr size_t kQueue = 256;  // events that were read and not reported yet
// Then the gate opens for a moment; otherwise a thread that unmaps all the time would keep it closed.
constexpr int kMaxBatches = 8;

// How long the reader sleeps at most: then it looks whether the program has closed its descriptor, of which the kernel
// tells it nothing, and whether it shall end without a bell.
constexpr timespec kLook = {1, 0};

// State of the reader thread, on its stack. All events that were read are reported before the gate opens.
struct Reader {
  Context* context;
  size_t next = 0, end = 0;  // of the events that were not reported yet
  bool is_over = false;      // an event was dropped, because the queue was full, or not read: it may be of any memory
  bool is_lost = false;
  bool rang = false;
  unsigned tries = 0;
  uffd_msg events[kQueue];
};

// Reports the range of one event; the gate is held.
void report_range_hook(Reader* reader, const uffd_msg& event) {
  const pinrail_host_t* host = reader->context->host;
  switch (event.event) {
    case UFFD_EVENT_UNMAP:
      if (event.arg.remove.start == reader->context->bell.load()) reader->rang = true;
      [[fallthrough]];
    case UFFD_EVENT_REMOVE:
      host->monitor_report_hook(host, event.arg.remove.start, event.arg.remove.end - event.arg.remove.start);
      break;
    // The mapping is watched at its new place. Registrations of both places die.
    case UFFD_EVENT_REMAP:
      host->monitor_report_hook(host, event.arg.remap.from, event.arg.remap.len);
      host->monitor_report_hook(host, event.arg.remap.to, event.arg.remap.len);
      break;
    default: break;  // a page fault: impossible, because nothing is write-protected
  }
}

// Reads at most one batch of events into the queue. False: there was none, or the descriptor is lost.
bool read_some_hook(Reader* reader) {
  if (reader->next != 0 && reader->end + kBatch > kQueue) {
    std::memmove(reader->events, reader->events + reader->next, (reader->end - reader->next) * sizeof(uffd_msg));
    reader->end -= reader->next;
    reader->next = 0;
  }
  if (reader->end + kBatch > kQueue) {
    reader->end -= kBatch;
    reader->is_over = true;
  }
  uffd_msg* const events = reader->events + reader->end;
  const long got = system_call_hook(SYS_read, reader->context->watch.number(), events, kBatch * sizeof(uffd_msg));
  if (got == -EAGAIN || got == -EINTR) return false;
  if (got <= 0 || static_cast<size_t>(got) % sizeof(uffd_msg) != 0) {
    reader->is_over = reader->is_over || !reader->is_lost;
    reader->is_lost = true;
    return false;
  }
  reader->end += static_cast<size_t>(got) / sizeof(uffd_msg);
  return true;
}

// Keeps uffd/U3: called between two tries of a lock. The lock's holder may be in munmap() in a signal handler.
void service_while_waiting_hook(void* reader_pointer) {
  constexpr unsigned kSpins = 64;
  constexpr timespec kPause = {0, 50000};
  auto* const reader = static_cast<Reader*>(reader_pointer);
  if (++reader->tries % kSpins != 0 || read_some_hook(reader)) return;
  pollfd ready = {reader->context->watch.number(), POLLIN, 0};
  timespec pause = kPause;
  system_call_hook(SYS_ppoll, &ready, 1, &pause, nullptr, 0);
}

// Reports what is in the queue, and what is read meanwhile.
void report_queued_hook(Reader* reader) {
  while (reader->next != reader->end) {
    const uffd_msg event = reader->events[reader->next++];  // a copy: more may be read while it is reported
    report_range_hook(reader, event);
  }
}

// Keeps uffd/U2: the thread that caused an event continues as soon as it is read, so the gate is held before.
bool take_events_hook(Reader* reader) {
  const pinrail_host_t* host = reader->context->host;
  host->monitor_hold_hook(host);
  for (int i = 0; i < kMaxBatches && read_some_hook(reader); ++i) report_queued_hook(reader);
  while (reader->is_over) {
    reader->is_over = false;  // before the report, during which more may be dropped
    host->monitor_report_hook(host, 0, UINTPTR_MAX);
    report_queued_hook(reader);
  }
  host->monitor_release_hook(host);
  return !reader->is_lost;
}

// Returns true when the bell rings or without one the reader shall end, false when the descriptor is lost. A descriptor
// that is closed while the reader sleeps stays open until it wakes up; threads that wait for it go on then.
bool read_until_bell_hook(Reader* reader) {
  while (!reader->rang) {
    pollfd ready = {reader->context->watch.number(), POLLIN, 0};
    if (ready.fd < 0) return false;
    timespec most = kLook;
    const long status = system_call_hook(SYS_ppoll, &ready, 1, &most, nullptr, 0);
    if (status < 0 && status != -EINTR) return false;
    if (status > 0 && (ready.revents & ~POLLIN) != 0) return false;
    if (status > 0 && !take_events_hook(reader)) return false;
    if (status == 0 && reader->context->stopping.load()) return true;
    if (reader->context->is_closed.load()) return false;
  }
  return true;
}

}  // namespace

// The thread may wait for locks afterwards, when the reader's queue is gone: then it sleeps like any other thread.
bool read_events_hook(Context* context) {
  Reader reader{};
  reader.context = context;
  const HookLocks locks = HookLocks::of(context->host);
  HookDepth* const depth = locks.depth_hook != nullptr ? locks.depth_hook() : nullptr;
  if (depth != nullptr) {
    depth->waiting_arg = &reader;
    depth->while_waiting_hook = service_while_waiting_hook;
  }
  const bool rang = read_until_bell_hook(&reader);
  if (depth != nullptr) depth->while_waiting_hook = nullptr;
  return rang;
}

}  // namespace pinrail::uffd
