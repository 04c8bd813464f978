// SPDX-License-Identifier: BSD-3-Clause
// Writes down which range a registration had that has ended. Hook or API context; takes no lock, allocates nothing.
#include "components/mpool/grdma/grdma_reasons.h"

namespace pinrail::grdma {
namespace {

void store_hook(uintptr_t* field, uintptr_t value) { __atomic_store_n(field, value, __ATOMIC_RELAXED); }
uintptr_t load_hook(const uintptr_t* field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }

}  // namespace

// The class of the smallest blocks that are at least as long. What is longer than the last class's blocks is in it,
// too.
unsigned Reasons::class_of_hook(const Span& span) {
  unsigned size_class = 0;
  while (size_class + 1 < kClasses && span.length() > size_t{1} << order_of_hook(size_class)) ++size_class;
  return size_class;
}

Reasons::Bucket& Reasons::bucket_of_hook(uintptr_t addr, unsigned size_class) const {
  const uint64_t block = addr >> order_of_hook(size_class);
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
