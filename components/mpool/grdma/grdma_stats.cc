// SPDX-License-Identifier: BSD-3-Clause
// What the statistics have of this pool's own, and of the pool of GPU memory beside it. counters() takes no lock. The
// calling thread may hold references.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const {
  Base::counters(stats_out);
  reasons_.add_to(stats_out);
  stats_out->extent_hits = extents_.hits();
  stats_out->extent_lost = extents_.lost();
  stats_out->peak_registered_bytes = cache_->peak_bytes();
  if (gpu_ == nullptr) return;
  const Pool& ranges = *gpu_->ranges();
  pinrail_mpool_stats_t more{};
  ranges.Base::counters(&more);
  ranges.reasons_.add_to(stats_out);
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
