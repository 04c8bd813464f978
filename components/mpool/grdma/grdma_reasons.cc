// SPDX-License-Identifier: BSD-3-Clause
// Takes no lock. API context, but what ends in _hook.
#include "components/mpool/grdma/grdma_reasons.h"

#include <algorithm>

namespace pinrail::grdma {
namespace {

// Threads that write one entry together may mix their ranges: then a miss has another reason, and nothing else happens.
uintptr_t load_hook(const uintptr_t* field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }
void store_hook(uintptr_t* field, uintptr_t value) { __atomic_store_n(field, value, __ATOMIC_RELAXED); }

}  // namespace

Status Reasons::start() {
  buckets_.reset(
      static_cast<Bucket*>(std::calloc(kBuckets, sizeof(Bucket))));  // pages of it that stay 0 need no memory
  return buckets_ == nullptr ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
}

pinrail_miss_reason_t Reasons::reason_of(const Entry& entry, const Span& span) {
  const Span lost{load_hook(&entry.lost_base), load_hook(&entry.lost_end)};
  if (lost.end == 0) return PINRAIL_MISS_EVICTED;
  return lost.overlaps(span) ? PINRAIL_MISS_EVENT : PINRAIL_MISS_EXTENT;
}

pinrail_miss_reason_t Reasons::why_ended(const Span& span) {
  const uint32_t classes = classes_.load(std::memory_order_relaxed);
  for (unsigned size_class = class_of_hook(span); size_class < kClasses && classes >> size_class != 0; ++size_class) {
    if ((classes >> size_class & 1) == 0) continue;
    for (Entry& entry : bucket_of_hook(span.base, size_class).entries) {
      const Span ended{load_hook(&entry.base), load_hook(&entry.end)};
      if (!ended.contains(span)) continue;
      const pinrail_miss_reason_t reason = reason_of(entry, span);
      if (ended.base == span.base && ended.end == span.end) store_hook(&entry.end, 0);
      return reason;
    }
  }
  return PINRAIL_MISS_COLD;
}

// The class of the smallest blocks that are at least as long. What is longer than the last class's blocks is in it,
// too.
unsigned Reasons::class_of_hook(const Span& span) {
  if (span.length() <= size_t{1} << kFirstOrder) return 0;
  const auto order = 64U - static_cast<unsigned>(__builtin_clzll(span.length() - 1));  // of the smallest power of two
  return std::min((order - kFirstOrder + kStep - 1) / kStep, kClasses - 1);
}

Reasons::Bucket& Reasons::bucket_of_hook(uintptr_t addr, unsigned size_class) const {
  const uint64_t block = addr >> (kFirstOrder + kStep * size_class);
  const uint64_t mixed = (block * kClasses + size_class) * 0x9E3779B97F4A7C15u;
  return buckets_[mixed >> 32 & (kBuckets - 1)];
}

// The entry of the same range, else an unused one, else any.
Reasons::Entry& Reasons::place_for_hook(Bucket* bucket, const Span& span) {
  Entry* unused = nullptr;
  for (Entry& entry : bucket->entries) {
    if (load_hook(&entry.base) == span.base && load_hook(&entry.end) == span.end) return entry;
    if (load_hook(&entry.end) == 0) unused = &entry;
  }
  if (unused != nullptr) return *unused;
  return bucket->entries[victim_.fetch_add(1, std::memory_order_relaxed) % kPlaces];
}

// Writes down which range a registration had that has ended. Allocates nothing.
void Reasons::ended_hook(const Span& span, const Span& lost) {
  if (buckets_ == nullptr) return;
  const unsigned size_class = class_of_hook(span);
  const uint32_t bit = uint32_t{1} << size_class;
  if ((classes_.load(std::memory_order_relaxed) & bit) == 0) classes_.fetch_or(bit, std::memory_order_relaxed);
  Bucket* const first = &bucket_of_hook(span.base, size_class);
  Bucket* const last = &bucket_of_hook(span.end - 1, size_class);
  for (Bucket* bucket = first;; bucket = last) {
    Entry& entry = place_for_hook(bucket, span);
    store_hook(&entry.base, span.base);
    store_hook(&entry.end, span.end);
    store_hook(&entry.lost_base, lost.base);
    store_hook(&entry.lost_end, lost.end);
    if (bucket == last) break;
  }
}

}  // namespace pinrail::grdma
