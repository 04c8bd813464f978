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

void Session::report_hook(void* session, uintptr_t base, size_t length) {
  static_cast<Session*>(session)->free_hook(base, length);
}

// All of them die before the first is waited for, and all are waited for together.
void Session::free_hook(uintptr_t base, size_t length) {
  const uintptr_t end = base + length;
  exports_.for_overlapping_hook(base, end, [&](uint32_t slot) { exporter_.kill_hook(slot); });
  if (free_ != Free::defer) return;
  const uint64_t until = now_ms_hook() + free_timeout_ms_;
  exports_.for_overlapping_hook(base, end, [&](uint32_t slot) { wait_for_importers_hook(slot, until); });
}

// The caller is about to free GPU memory, which waits for the GPU anyway. Peers close within their gc_interval; one
// that has crashed, before or while it is waited for, is not waited for.
void Session::wait_for_importers_hook(uint32_t slot, uint64_t until) {
  constexpr unsigned kLookEvery = 50;  // pauses: a look at a process costs as much as a dozen of them
  const timespec pause{0, 200000};
  for (unsigned pauses = 0; exporter_.importers_hook(slot) != 0; ++pauses) {
    if (pauses % kLookEvery == 0) {
      exporter_.forget_dead_hook(slot);
      continue;
    }
    if (now_ms_hook() >= until) return;
    nanosleep(&pause, nullptr);
  }
}

}  // namespace pinrail::gpusm
