// SPDX-License-Identifier: BSD-3-Clause
// GPU memory is about to be freed: its slots change before the free returns. Hook context: it may run inside an
// allocator, so it takes no lock and does not allocate.
#include <time.h>

#include "base/core/no_cancel.h"
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

// Ends all slots of the range before it waits for the importers of the first. Free::defer: one time limit for all. A
// thread that holds the gate does not wait (gate/T2): such an event was postponed, so the free has happened already.
void Session::free_hook(uintptr_t base, size_t length) {
  const uintptr_t end = base + length;
  exports_.for_overlapping_hook(base, end, [&](uint32_t slot) { exporter_.kill_hook(slot); });
  if (free_ != Free::defer || host_->depth_hook()->gates != 0) return;
  const uint64_t until = now_ms_hook() + free_timeout_ms_;
  exports_.for_overlapping_hook(base, end, [&](uint32_t slot) { wait_for_importers_hook(slot, until); });
}

// Waits until no importer has the memory open, or until the time limit. The caller is about to free GPU memory, which
// waits for the GPU anyway. Peers close within their gc_interval; a crashed peer is not waited for. The slot stays
// until then (gpusm/O3); if it serves other memory nevertheless, that is not waited for.
void Session::wait_for_importers_hook(uint32_t slot, uint64_t until) {
  const NoCancel no_cancel;
  const uint64_t freed = exporter_.incarnation_hook(slot);
  if (exports_.waited_hook(slot) == freed) return;
  constexpr unsigned kLookEvery = 50;  // pauses: checking a process costs as much as a dozen pauses
  const timespec pause{0, 200000};
  for (unsigned pauses = 0; exporter_.importers_hook(slot) != 0 && exporter_.incarnation_hook(slot) == freed;
       ++pauses) {
    if (pauses % kLookEvery == 0) {
      exporter_.forget_dead_hook(slot);
      continue;
    }
    if (now_ms_hook() >= until) break;
    nanosleep(&pause, nullptr);
  }
  exports_.set_waited_hook(slot, freed);
}

}  // namespace pinrail::gpusm
