// SPDX-License-Identifier: BSD-3-Clause
// hit_counts.h - how often a pool answered from its cache, counted without a word that threads share.
//
// Threads  any; each of the first threads has a line of its own.
#ifndef PINRAIL_BASE_CORE_HIT_COUNTS_H
#define PINRAIL_BASE_CORE_HIT_COUNTS_H

#include <pinrail/component.h>

#include <algorithm>

#include "base/core/figure.h"

namespace pinrail {

class HitCounts {
 public:
  static constexpr uint32_t kAlone = 63;  // threads with a line of their own; the others share the last one

  void add(const pinrail_thread_t* thread) {
    uint64_t* const count = &counts_[std::min(thread->index, kAlone)].hits;
    if (thread->index < kAlone) {
      figure::raise(count);
    } else {
      __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);  // relaxed: a figure
    }
  }

  uint64_t sum() const {
    uint64_t hits = 0;
    for (const Count& count : counts_) hits += __atomic_load_n(&count.hits, __ATOMIC_RELAXED);
    return hits;
  }

  // As pinrail_shortcut_t wants it: of thread i, below kAlone: lines()[16 * i].
  uint64_t* lines() { return &counts_[0].hits; }

 private:
  struct alignas(128) Count {
    uint64_t hits = 0;  // atomic
  };
  static_assert(sizeof(Count) == 16 * sizeof(uint64_t), "as the contract of shortcuts says");
  Count counts_[kAlone + 1];
};

}  // namespace pinrail

#endif
