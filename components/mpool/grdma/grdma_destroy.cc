// SPDX-License-Identifier: BSD-3-Clause
// What differs of destroy and ft_event where the pool has one of GPU memory beside it. API context. The caller holds no
// lock.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  if (gpu_ != nullptr && !gpu_->ranges()->close_if_idle(flags)) return PINRAIL_ERR_BUSY;
  if (!close_if_idle(flags)) {
    if (gpu_ != nullptr) gpu_->ranges()->set_closing(false);
    return PINRAIL_ERR_BUSY;
  }
  print_stats_if_asked();
  if (gpu_ != nullptr) gpu_->destroy_ranges(thread);
  gpu_.reset();
  destroy_closed(thread);
  return success();
}

Status Pool::ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
  const bool releases = state != PINRAIL_FT_CONTINUE && state != PINRAIL_FT_RESTART;
  if (gpu_ != nullptr && releases) gpu_->ranges()->release_idle(thread);
  return Base::ft_event(thread, state);
}

// The registrars come first, because they may refuse.
Status Pool::restart(pinrail_thread_t* thread) {
  Status told = host_->pools->registrar_restart(config_.registrar, thread);
  if (told.ok() && gpu_ != nullptr) told = gpu_->tell_registrar(thread);
  if (!told.ok()) return told;
  if (gpu_ != nullptr) gpu_->ranges()->release_all(thread, Device::restarted);
  release_all(thread, Device::restarted);
  return success();
}

Status Pool::progress(pinrail_thread_t* thread) {
  drain(thread, SIZE_MAX);
  return gpu_ != nullptr ? gpu_->ranges()->progress(thread) : success();
}

}  // namespace pinrail::grdma
