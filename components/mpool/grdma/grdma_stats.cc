// SPDX-License-Identifier: BSD-3-Clause
// Statistics of a pool, and the check of its invariants for tests. API context. The caller holds no lock; stats() and
// check() take the cache lock, counters() takes none. The calling thread may hold references.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// relaxed throughout: statistics, each right by itself.
pinrail_mpool_stats_t Pool::happened() const {
  pinrail_mpool_stats_t totals{};
  totals.size = sizeof(totals);
  totals.hits = host_->pools->quick_hits(config_.pool);
  reasons_.add_to(&totals);
  totals.evictions = evictions_.load(std::memory_order_relaxed);
  totals.invalidations = invalidations_.load(std::memory_order_relaxed);
  totals.races = races_.load(std::memory_order_relaxed);
  totals.retries = retries_.load(std::memory_order_relaxed);
  totals.uncovered = uncovered_.load(std::memory_order_relaxed);
  totals.extent_hits = extents_.hits();
  totals.extent_lost = extents_.lost();
  if (gpu_ != nullptr) {
    const pinrail_mpool_stats_t more = gpu_->ranges()->happened();
    gpu_->ranges()->reasons_.add_to(&totals);
    totals.evictions += more.evictions;
    totals.invalidations += more.invalidations;
    totals.races += more.races;
    totals.retries += more.retries;
  }
  totals.size_limit = cache_->limits().bytes;
  totals.count_limit = cache_->limits().count;
  totals.leave_pinned = settings_.leave_pinned ? 1 : 0;
  totals.evicts_idle_only = cache_->limits().bounds_idle_only ? 1 : 0;
  return totals;
}

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const {
  *stats_out = happened();
  stats_out->peak_registered_bytes = cache_->peak_bytes();
}

// All statistics. Walks the cache's registrations under its lock.
void Pool::stats(pinrail_mpool_stats_t* stats_out) const {
  pinrail_mpool_stats_t totals = happened();
  totals.indexed = rcache_.ops.count(rcache_.module);
  totals.dead_bytes = gc_list_.bytes();
  if (gpu_ != nullptr) {
    const Pool& ranges = *gpu_->ranges();
    totals.indexed += ranges.rcache_.ops.count(ranges.rcache_.module);
    totals.dead_bytes += ranges.gc_list_.bytes();
  }
  const Usage usage = cache_->usage();
  totals.registered_bytes = usage.bytes;
  totals.registered_count = usage.count;
  totals.peak_registered_bytes = usage.peak_bytes;
  totals.pinned_bytes = cache_->pinned_bytes();
  *stats_out = totals;
}

// For tests: NULL, or what is broken of the invariants of the pool's objects and of the index.
const char* Pool::check() const {
  const char* const in_gpu = gpu_ != nullptr ? gpu_->ranges()->check() : nullptr;
  if (in_gpu != nullptr) return in_gpu;
  if (rcache_.ops.check(rcache_.module) != PINRAIL_SUCCESS) return "the index is broken";
  return cache_->check(this);
}

}  // namespace pinrail::grdma
