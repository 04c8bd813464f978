// SPDX-License-Identifier: BSD-3-Clause
// Statistics, queries, and the check of the invariants for tests. API context; the caller holds no lock.
#include <vector>

#include "base/core/on_unwind.h"
#include "components/mpool/mrall/mrall.h"

namespace pinrail::mrall {

// relaxed throughout: statistics, each right by itself.
pinrail_mpool_stats_t Pool::happened() const {
  pinrail_mpool_stats_t totals{};
  totals.size = sizeof(totals);
  totals.hits = hits_.sum();
  totals.misses = misses_.load(std::memory_order_relaxed);
  totals.invalidations = invalidations_.load(std::memory_order_relaxed);
  totals.races = races_.load(std::memory_order_relaxed);
  totals.uncovered = uncovered_.load(std::memory_order_relaxed);
  totals.size_limit = cache_->limits().bytes;
  totals.count_limit = cache_->limits().count;
  totals.leave_pinned = 1;
  return totals;
}

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const { *stats_out = happened(); }

void Pool::stats(pinrail_mpool_stats_t* stats_out) const {
  pinrail_mpool_stats_t totals = happened();
  totals.indexed = rcache_.ops.count(rcache_.module);
  totals.dead_bytes = dead_bytes_.load(std::memory_order_relaxed);
  const mpool::Usage usage = cache_->usage();
  totals.registered_bytes = usage.bytes;
  totals.registered_count = usage.count;
  totals.peak_registered_bytes = usage.peak_bytes;
  totals.pinned_bytes = cache_->covered_bytes();
  *stats_out = totals;
}

// Visits the range of each registration in the index that overlaps the span and has the access.
Status Pool::query(pinrail_thread_t* thread, const Span& span, uint32_t access, QueryVisit visit, void* arg) {
  if ((access & PINRAIL_TRAITS_MASK) != 0) return success();
  Held held;
  find_all(thread, span, &held);
  OnUnwind unwound([&] { drop_all(thread, &held); });  // visit() may lack memory
  for (const pinrail_registration_t* reg : held) {
    if ((access & ~reg->rights) == 0) visit(arg, span_of(reg).base, reg->length);
  }
  unwound.disarm();
  drop_all(thread, &held);
  return success();
}

// For tests: NULL, or what is broken.
const char* Pool::check() const {
  return rcache_.ops.check(rcache_.module) != PINRAIL_SUCCESS ? "the index is broken" : cache_->check();
}

}  // namespace pinrail::mrall
