// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/own_calls.h"

namespace pinrail::monitor {

// Reports on other threads do not count: a monitor with a thread of its own sees raw system calls too, and is not what
// the trial is about.
void OwnCallsProbe::report_hook(void* probe_pointer, uintptr_t base, size_t length) {
  auto* probe = static_cast<OwnCallsProbe*>(probe_pointer);
  if (pthread_equal(pthread_self(), probe->thread) == 0) return;
  if (base < probe->end.load() && base + length > probe->base.load()) probe->is_reported.store(true);
}

// Of any thread: an allocator may unmap on a thread of its own.
void LateTrial::report_hook(void* trial, uintptr_t base, size_t length) {
  for (Block& block : static_cast<LateTrial*>(trial)->blocks_) {
    const uintptr_t page = block.page.load();
    if (page >= base && page < base + length) block.is_reported.store(true);
  }
}

}  // namespace pinrail::monitor
