// SPDX-License-Identifier: BSD-3-Clause
// Figures of a pool, and the check of its invariants for tests.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// relaxed throughout: figures, each right by itself.
pinrail_mpool_stats_t Pool::happened() const {
  pinrail_mpool_stats_t figures{};
  figures.size = sizeof(figures);
  figures.hits = hits_.sum();
  figures.misses = misses_.load(std::memory_order_relaxed);
  figures.evictions = evictions_.load(std::memory_order_relaxed);
  figures.invalidations = invalidations_.load(std::memory_order_relaxed);
  figures.races = races_.load(std::memory_order_relaxed);
  figures.retries = retries_.load(std::memory_order_relaxed);
  figures.uncovered = uncovered_.load(std::memory_order_relaxed);
  if (gpu_ != nullptr) {
    const pinrail_mpool_stats_t more = gpu_->ranges()->happened();
    figures.hits += more.hits;
    figures.misses += more.misses;
    figures.evictions += more.evictions;
    figures.invalidations += more.invalidations;
    figures.races += more.races;
    figures.retries += more.retries;
  }
  figures.size_limit = cache_->limits().bytes;
  figures.count_limit = cache_->limits().count;
  figures.leave_pinned = settings_.leave_pinned ? 1 : 0;
  return figures;
}

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const {
  *stats_out = happened();
  stats_out->peak_registered_bytes = cache_->peak_bytes_unlocked();
}

void Pool::stats(pinrail_mpool_stats_t* stats_out) const {
  pinrail_mpool_stats_t figures = happened();
  figures.indexed = rcache_.ops->count(rcache_.module);
  figures.dead_bytes = gc_bytes_.load(std::memory_order_relaxed);
  if (gpu_ != nullptr) {
    const Pool& ranges = *gpu_->ranges();
    figures.indexed += ranges.rcache_.ops->count(ranges.rcache_.module);
    figures.dead_bytes += ranges.gc_bytes_.load(std::memory_order_relaxed);
  }
  const Usage usage = cache_->usage();
  figures.registered_bytes = usage.bytes;
  figures.registered_count = usage.count;
  figures.peak_registered_bytes = usage.peak_bytes;
  figures.pinned_bytes = cache_->pinned_bytes();
  *stats_out = figures;
}

// grdma/G1-grdma/G3 and the index's own. Under the cache lock states still move by drops and hits, so only what these
// cannot change is checked.
const char* Pool::check() const {
  const char* const in_gpu = gpu_ != nullptr ? gpu_->ranges()->check() : nullptr;
  if (in_gpu != nullptr) return in_gpu;
  if (rcache_.ops->check(rcache_.module) != PINRAIL_SUCCESS) return "the index is broken";
  Guard guard(cache_->mutex);
  if (!lru_list_.in_order()) return "the LRU list is out of order";
  size_t linked = 0;
  for (const pinrail_registration_t* reg = limbo_.first; reg != nullptr; reg = area_of(reg).next) {
    ++linked;
    constexpr uint64_t kWhich = state::kDead | state::kSummed | state::kPerThread;
    if ((state::load(reg) & kWhich) != kWhich) return "what is in limbo is not dead, or not summed";
    if (area_of(reg).owner != this) return "a registration is in a wrong pool's limbo";
  }
  for (const pinrail_registration_t* reg = all_.first; reg != nullptr; reg = area_of(reg).next) {
    ++linked;
    const uint64_t word = state::load(reg);
    if ((word & state::kSummed) != 0) return "a registration was summed dead and held, and is not in limbo";
    if (area_of(reg).owner != this) return "a registration is in a wrong pool's list";
    if ((word & state::kIndexed) != 0 && (word & state::kDead) != 0) return "a registration is indexed and dead";
    const bool is_listed = lru_list_.holds(reg) || area_of(reg).is_ready;
    if (is_listed && (word & state::kPerThread) == 0) return "what its last drop gives back is on the LRU list";
    if (lru_list_.holds(reg) && area_of(reg).is_ready) return "a registration is listed twice";
  }
  return linked == all_count_ ? nullptr : "the count of registrations is wrong";
}

}  // namespace pinrail::grdma
