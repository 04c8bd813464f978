// SPDX-License-Identifier: BSD-3-Clause
// Statistics, queries, and the check of the invariants for tests. API context; the caller holds no lock.
#include <vector>

#include "components/mpool/odp/odp.h"

namespace pinrail::odp {

// relaxed throughout: statistics, each right by itself.
pinrail_mpool_stats_t Pool::happened() const {
  pinrail_mpool_stats_t totals{};
  totals.size = sizeof(totals);
  totals.hits = hits_.sum();
  totals.misses = misses_.load(std::memory_order_relaxed);
  totals.evictions = evictions_.load(std::memory_order_relaxed);
  totals.retries = retries_.load(std::memory_order_relaxed);
  totals.size_limit = cache_->limits().bytes;
  totals.count_limit = cache_->limits().count;
  totals.leave_pinned = 1;
  return totals;
}

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const { *stats_out = happened(); }

// pinned_bytes stays 0: nothing is pinned.
void Pool::stats(pinrail_mpool_stats_t* stats_out) const {
  pinrail_mpool_stats_t totals = happened();
  totals.indexed = rcache_.ops.count(rcache_.module);
  const mpool::Usage usage = cache_->usage();
  totals.registered_bytes = usage.bytes;
  totals.registered_count = usage.count;
  totals.peak_registered_bytes = usage.peak_bytes;
  *stats_out = totals;
}

// Visits the range of each registration in the index that overlaps the span and has the access.
Status Pool::query(pinrail_thread_t* thread, const Span& span, uint32_t access, QueryVisit visit, void* arg) {
  if (rcache_.ops.find_all == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const uint32_t traits = (access & PINRAIL_TRAITS_MASK) | PINRAIL_TRAIT_ON_DEMAND;
  std::vector<pinrail_registration_t*> held(64);
  std::vector<Span> spans;
  size_t count;
  for (;;) {
    spans.reserve(held.size());  // nothing may throw while references are held
    count = rcache_.ops.find_all(rcache_.module, thread, span.base, span.length(), held.data(), held.size());
    if (count <= held.size()) break;
    for (pinrail_registration_t* reg : held) Status(drop(thread, {reg, generation_of(reg)})).ignore();
    held.resize(count + 64);
  }
  for (size_t i = 0; i < count; ++i) {
    pinrail_registration_t* const reg = held[i];
    const bool serves = (access & PINRAIL_RIGHTS_MASK & ~reg->rights) == 0 && reg->traits == traits;
    if (serves) spans.push_back(span_of(reg));
    Status(drop(thread, {reg, generation_of(reg)})).ignore();
  }
  for (const Span& each : spans) visit(arg, each.base, each.length());
  return success();
}

// For tests: NULL, or what is broken.
const char* Pool::check() const {
  return rcache_.ops.check(rcache_.module) != PINRAIL_SUCCESS ? "the index is broken" : cache_->check();
}

}  // namespace pinrail::odp
