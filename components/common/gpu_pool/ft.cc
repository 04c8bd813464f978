// SPDX-License-Identifier: BSD-3-Clause
// F2: a checkpoint leaves no idle registration open; after a restart no handle of before reaches the driver. API
// context; the caller holds no lock and may hold references.
#include "components/common/gpu_pool/gpu_pool.h"

namespace pinrail::gpu_pool {
namespace {

constexpr int kMaxWaits = 1000;  // rounds of 1 ms

}  // namespace

// CONTINUE does nothing; RESTART abandons all; CHECKPOINT and TERM close what is dead or idle.
Status Pool::ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (state == PINRAIL_FT_CONTINUE) return success();
  if (state == PINRAIL_FT_RESTART) return restart(thread);
  release_idle(thread);
  return success();
}

Status Pool::restart_registrar(pinrail_thread_t* thread) const {
  return host_->pools->registrar_restart(config_.registrar, thread);
}

// Forgets all registrations without calling the device. The caller ensures that no other thread uses a pool of this
// cache; hooks may run, but read no registration.
void Pool::abandon_all(pinrail_thread_t* thread) { release_all(thread, Device::restarted); }

// Closes what is dead or idle in this pool, then waits at most a second for closings on other threads. It ends even
// while others use the pool: it looks at each peer once.
void Pool::release_idle(pinrail_thread_t* thread) {
  progress(thread).ignore();  // closes what is dead; never an error
  bool held = false;
  for (const Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
    close_idle_overlapping(thread, *peer, 0, UINTPTR_MAX, &held);
  }
  for (int round = 0; round < kMaxWaits && wait_for_closing(thread); ++round) {
  }
}

}  // namespace pinrail::gpu_pool
