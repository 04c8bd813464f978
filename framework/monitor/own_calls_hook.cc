// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/own_calls.h"

namespace pinrail::monitor {

// A monitor that reports on a thread of its own sees system calls by whomever they are made; it is not what is tried.
void OwnCallsProbe::hook(void* probe_pointer, uintptr_t base, size_t length) {
  auto* probe = static_cast<OwnCallsProbe*>(probe_pointer);
  if (pthread_equal(pthread_self(), probe->thread) == 0) return;
  if (base < probe->end.load() && base + length > probe->base.load()) probe->is_reported.store(true);
}

}  // namespace pinrail::monitor
