// SPDX-License-Identifier: BSD-3-Clause
// Keeps E5 with real events. It makes the system calls itself: a report by a patched function would not show that the
// kernel reports. Start-up context; the caller holds Context::mutex.
#include <sys/mman.h>
#include <unistd.h>

#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

constexpr size_t kLength = 2 * kPage;

uintptr_t map_scratch() {
  const long got =
      system_call_hook(SYS_mmap, nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return patch::is_error_hook(got) ? 0 : static_cast<uintptr_t>(got);
}

void unmap(uintptr_t base) { system_call_hook(SYS_munmap, base, kLength); }

void drop(uintptr_t base) {
  system_call_hook(SYS_madvise, base, kLength, MADV_DONTNEED);
  unmap(base);
}

void move(uintptr_t base) {
  const uintptr_t onto = map_scratch();
  if (onto != 0) system_call_hook(SYS_mremap, base, kLength, kLength, MREMAP_MAYMOVE | MREMAP_FIXED, onto);
  unmap(onto != 0 ? onto : base);
}

// The kernel lets the caller continue before the reader has reported the event, so the report may come later.
bool wait_until_seen(const Context& context) {
  constexpr int kNaps = 2000;
  constexpr unsigned kNapMicroseconds = 1000;
  for (int i = 0; i < kNaps && !context.probe_seen.load() && !context.lost.load(); ++i) {
    if (i != 0) usleep(kNapMicroseconds);
  }
  return context.probe_seen.load();
}

// Watches scratch memory and acts on it. False if it cannot be watched or its event does not arrive.
bool fire(Context* context, void (*act)(uintptr_t base)) {
  const uintptr_t base = map_scratch();
  if (base == 0) return false;
  if (!watch_range(*context, {base, base + kLength})) {
    unmap(base);
    return false;
  }
  context->probe_seen.store(false);
  context->probe_base.store(base);
  context->probe_end.store(base + kLength);
  act(base);
  const bool seen = wait_until_seen(*context);
  context->probe_end.store(0);
  return seen;
}

}  // namespace

// NOT_AVAILABLE: an event of some kind does not arrive.
Status try_events_locked(Context* context) {
  const pinrail_host_t* host = context->host;
  void* subscription;
  const Status subscribed = host->monitor_subscribe(host, PINRAIL_KIND_HOST, probe_hook, context, &subscription);
  if (!subscribed.ok()) return subscribed;
  const bool seen = fire(context, unmap) && fire(context, drop) && fire(context, move);
  host->monitor_unsubscribe(host, subscription);
  if (!seen) host->log(host, PINRAIL_LOG_INFO, "the kernel's events do not arrive");
  return seen ? success() : Status(PINRAIL_ERR_NOT_AVAILABLE);
}

}  // namespace pinrail::uffd
