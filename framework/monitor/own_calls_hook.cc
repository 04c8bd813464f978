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

}  // namespace pinrail::monitor
