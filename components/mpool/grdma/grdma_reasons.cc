// SPDX-License-Identifier: BSD-3-Clause
// Looks up why a registration of a range has ended. API context; takes no lock.
#include "components/mpool/grdma/grdma_reasons.h"

namespace pinrail::grdma {
namespace {

uintptr_t load(const uintptr_t* field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }

}  // namespace

Status Reasons::start() {
  buckets_.reset(
      static_cast<Bucket*>(std::calloc(kBuckets, sizeof(Bucket))));  // pages of it that stay 0 need no memory
  return buckets_ == nullptr ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
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
