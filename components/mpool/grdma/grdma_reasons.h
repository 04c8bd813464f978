// SPDX-License-Identifier: BSD-3-Clause
// grdma_reasons.h - why requests of one pool miss: which ranges were registered until lately.
//
// The table of ended ranges forgets: it has a fixed size, and a bucket that is full loses an entry. A request whose
// range was forgotten counts as cold. So the table only ever fails to name a reason; it names none that does not hold.
//
// Owns     the table. Not the registrations.
// Threads  all functions may run together; start() comes before all others.
// Hook     ended_hook(), and what it calls.
//
// An entry is written by the owner of the registration, or under the lock of the index that lost it.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_REASONS_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_REASONS_H

#include <pinrail/stats.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "base/core/span.h"
#include "base/core/status.h"

namespace pinrail::grdma {

class Reasons {
 public:
  // Begins to remember what has ended, for a pool that keeps registrations. OUT_OF_RESOURCE: no memory.
  Status start();

  // A registration of the range has ended: because `lost`, which overlaps it, went away, or by eviction, where lost is
  // empty.
  void ended_hook(const Span& span, const Span& lost);
  // Why a registration that contained the range ended: EVENT, EVICTED, EXTENT (its memory went away, but not that of
  // this range), or COLD: none is remembered. Forgets the entry if it is of exactly this range.
  pinrail_miss_reason_t why_ended(const Span& span);

 private:
  // lost_end 0: it was evicted. All fields are read and written as relaxed atomics: a mixture of two entries at worst
  // names a wrong reason.
  struct Entry {
    uintptr_t base, end, lost_base, lost_end;
  };
  // Ranges of up to 4 KiB, 32 KiB, 256 KiB and so on are in classes of their own. A bucket has those of one class that
  // touch one block of the class's size, so a range is in one bucket or two.
  static constexpr unsigned kFirstOrder = 12, kStep = 3, kClasses = 13;
  static constexpr size_t kBuckets = 2048, kPlaces = 4;
  struct Bucket {
    Entry entries[kPlaces];
  };
  struct Freed {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };

  static unsigned class_of_hook(const Span& span);
  Bucket& bucket_of_hook(uintptr_t addr, unsigned size_class) const;
  Entry& place_for_hook(Bucket* bucket, const Span& span);
  static pinrail_miss_reason_t reason_of(const Entry& entry, const Span& span);

  std::unique_ptr<Bucket[], Freed> buckets_;
  std::atomic<uint32_t> classes_{0};  // a bit for each class that has had entries
  std::atomic<uint32_t> victim_{0};
};

}  // namespace pinrail::grdma

#endif
