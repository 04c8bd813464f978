// SPDX-License-Identifier: BSD-3-Clause
// What concerns the pool and the one of GPU memory beside it: destroy, ft_event, statistics. API context. The caller
// holds no lock, and may hold references. counters() takes no lock.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// The pool of GPU memory, or this one.
Pool* Pool::pool_of(const pinrail_registration_t* reg) {
  return gpu_ != nullptr && area_of(reg).owner == gpu_->ranges()->number ? gpu_->ranges() : this;
}

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

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const {
  Base::counters(stats_out);
  stats_out->extent_hits = extents_.hits();
  stats_out->extent_lost = extents_.lost();
  stats_out->peak_registered_bytes = cache_->peak_bytes();
  if (gpu_ == nullptr) return;
  const Pool& ranges = *gpu_->ranges();
  pinrail_mpool_stats_t more{};
  ranges.Base::counters(&more);
  stats_out->evictions += more.evictions;
  stats_out->invalidations += more.invalidations;
  stats_out->races += more.races;
  stats_out->retries += more.retries;
}

size_t Pool::count_indexed() const {
  return Base::count_indexed() + (gpu_ != nullptr ? gpu_->ranges()->count_indexed() : 0);
}

uint64_t Pool::dead_bytes() const { return gc_list.bytes() + (gpu_ != nullptr ? gpu_->ranges()->gc_list.bytes() : 0); }

size_t Pool::referenced() const { return Base::referenced() + (gpu_ != nullptr ? gpu_->ranges()->referenced() : 0); }

const char* Pool::check() const {
  const char* const in_gpu = gpu_ != nullptr ? gpu_->ranges()->check() : nullptr;
  return in_gpu != nullptr ? in_gpu : Base::check();
}

}  // namespace pinrail::grdma
