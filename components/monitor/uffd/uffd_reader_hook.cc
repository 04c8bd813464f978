// SPDX-License-Identifier: BSD-3-Clause
// Hook context: reads events from the kernel and reports them to all subscribers.
#include <linux/userfaultfd.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

constexpr size_t kBatch = 16;  // events; they lie on the reader's stack
// Then the gate opens for a moment; otherwise a thread that unmaps all the time would keep it closed.
constexpr int kMaxBatches = 8;

// Reports the range of one event; the gate is held.
void tell_hook(const Context& context, const uffd_msg& event) {
  const pinrail_host_t* host = context.host;
  switch (event.event) {
    case UFFD_EVENT_UNMAP:
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

enum class Taken : uint8_t { some, none, lost };

// Reads and reports a batch of events. lost: the descriptor cannot be read any more.
Taken take_batch_hook(const Context& context) {
  uffd_msg events[kBatch];
  const long got = kernel_hook(SYS_read, context.watch, events, sizeof(events));
  if (got == -EAGAIN || got == -EINTR) return Taken::none;
  if (got <= 0 || static_cast<size_t>(got) % sizeof(uffd_msg) != 0) return Taken::lost;
  for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) tell_hook(context, events[i]);
  return static_cast<size_t>(got) == sizeof(events) ? Taken::some : Taken::none;
}

// Keeps uffd/U2: the thread that caused an event continues as soon as it is read, so the gate is held before.
bool take_events_hook(const Context& context) {
  const pinrail_host_t* host = context.host;
  host->monitor_hold_hook(host);
  Taken taken = Taken::some;
  for (int i = 0; i < kMaxBatches && taken == Taken::some; ++i) taken = take_batch_hook(context);
  if (taken == Taken::lost) host->monitor_report_hook(host, 0, UINTPTR_MAX);  // unread events may concern any memory
  host->monitor_release_hook(host);
  return taken != Taken::lost;
}

}  // namespace

// Events are read before the bell is tested, because threads wait until their events are read.
bool read_events_hook(Context* context) {
  pollfd ready[2] = {{context->watch, POLLIN, 0}, {context->bell, POLLIN, 0}};
  for (;;) {
    const long status = kernel_hook(SYS_ppoll, ready, 2, nullptr, nullptr, 0);
    if (status == -EINTR) continue;
    if (status < 0) return false;
    if ((ready[0].revents & ~POLLIN) != 0) return false;
    if ((ready[0].revents & POLLIN) != 0) {
      if (!take_events_hook(*context)) return false;
    } else if (ready[1].revents != 0) {
      return true;
    }
  }
}

void probe_hook(void* context_pointer, uintptr_t base, size_t length) {
  auto* context = static_cast<Context*>(context_pointer);
  const bool inside = base >= context->probe_base.load() && base + length <= context->probe_end.load();
  if (inside && length != 0) context->probe_seen.store(true);
}

}  // namespace pinrail::uffd
