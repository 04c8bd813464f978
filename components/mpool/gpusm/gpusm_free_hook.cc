// SPDX-License-Identifier: BSD-3-Clause
// Memory goes away: its slot says so before the free returns. Inside somebody's allocator: no lock, no memory.
#include <time.h>

#include "components/mpool/gpusm/gpusm.h"

namespace pinrail::gpusm {
namespace {

uint64_t now_ms_hook() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000 + static_cast<uint64_t>(time.tv_nsec) / 1000000;
}

}  // namespace

void Life::report_hook(void* life, uintptr_t base, size_t length) { static_cast<Life*>(life)->free_hook(base, length); }

void Life::free_hook(uintptr_t base, size_t length) {
  const uintptr_t end = base + length;
  if (end <= exports_.lowest.load() || base >= exports_.highest.load()) return;
  const uint32_t used = exports_.used.load();
  for (uint32_t slot = 0; slot < used; ++slot) {
    const Exports::Range& range = exports_.ranges[slot];
    if (range.base.load() >= end || range.end.load() <= base) continue;
    exporter_.kill_hook(slot);
    if (free_ == Free::defer) wait_for_importers_hook(slot);
  }
}

// The caller is about to free GPU memory, which waits for the GPU anyway. Peers close within their gc_interval; one
// that crashed is not waited for beyond the limit.
bool Life::wait_for_importers_hook(uint32_t slot) const {
  const uint64_t until = now_ms_hook() + free_timeout_ms_;
  const timespec pause{0, 200000};
  while (exporter_.importers_hook(slot) != 0) {
    if (now_ms_hook() >= until) return false;
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace pinrail::gpusm
