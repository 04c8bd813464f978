// SPDX-License-Identifier: BSD-3-Clause
// Counts misses by reason, and looks up why a registration of a range has ended. API context; takes no lock.
#include "components/mpool/grdma/grdma_reasons.h"

namespace pinrail::grdma {
namespace {

uintptr_t load(const uintptr_t* field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }

// Their fields are in the order of the reasons.
constexpr size_t kFirst = offsetof(pinrail_mpool_stats_t, misses_cold);
static_assert(offsetof(pinrail_mpool_stats_t, misses_not_kept) == kFirst + PINRAIL_MISS_NOT_KEPT * sizeof(uint64_t));

}  // namespace

Status Reasons::start() {
  buckets_.reset(
      static_cast<Bucket*>(std::calloc(kBuckets, sizeof(Bucket))));  // pages of it that stay 0 need no memory
  return buckets_ == nullptr ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
}

void Reasons::add_to(pinrail_mpool_stats_t* totals) const {
  auto* const fields = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(totals) + kFirst);
  for (size_t i = 0; i < PINRAIL_MISS_REASONS; ++i) {
    const uint64_t count = counts_[i].load(std::memory_order_relaxed);
    fields[i] += count;
    totals->misses += count;
  }
}

pinrail_miss_reason_t Reasons::reason_of(const Entry& entry, const Span& span) {
  const Span lost{load(&entry.lost_base), load(&entry.lost_end)};
  if (lost.end == 0) return PINRAIL_MISS_EVICTED;
  return lost.overlaps(span) ? PINRAIL_MISS_EVENT : PINRAIL_MISS_EXTENT;
}

pinrail_miss_reason_t Reasons::why_ended(const Span& span) {
  const uint32_t classes = classes_.load(std::memory_order_relaxed);
  for (unsigned size_class = class_of_hook(span); size_class < kClasses && classes >> size_class != 0; ++size_class) {
    if ((classes >> size_class & 1) == 0) continue;
    for (Entry& entry : bucket_of_hook(span.base, size_class).entries) {
      const Span ended{load(&entry.base), load(&entry.end)};
      if (!ended.contains(span)) continue;
      const pinrail_miss_reason_t reason = reason_of(entry, span);
      if (ended.base == span.base && ended.end == span.end) __atomic_store_n(&entry.end, 0, __ATOMIC_RELAXED);
      return reason;
    }
  }
  return PINRAIL_MISS_COLD;
}

}  // namespace pinrail::grdma
