// SPDX-License-Identifier: BSD-3-Clause
// hit_counts.h - counts a pool's hits without a word that threads share.
//
// Owns     a cache line for each thread, in pages that are populated on use, unless use() gives it other memory.
// Threads  add() and sum() at any time; construction and destruction exclude them. API context.
#ifndef PINRAIL_BASE_HIT_HIT_COUNTS_H
#define PINRAIL_BASE_HIT_HIT_COUNTS_H

#include <sys/mman.h>

#include <new>

#include "base/core/compiler.h"
#include "base/core/stat_counter.h"
#include "base/registration/thread.h"

namespace pinrail {

class HitCounts {
 public:
  // Threads with a lower index have a line of their own; the others share the last one.
  static constexpr uint32_t kAlone = thread::kThreadsWithOwnCounters;

  // May throw bad_alloc.
  HitCounts() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    counts_ = static_cast<Count*>(memory);
  }
  ~HitCounts() {
    if (owns_) munmap(counts_, kBytes);
  }
  HitCounts(const HitCounts&) = delete;
  HitCounts& operator=(const HitCounts&) = delete;

  // Counts in this memory from now on, kBytes that are 0. Before anything was counted.
  void use(void* memory) {
    munmap(counts_, kBytes);
    counts_ = static_cast<Count*>(memory);
    owns_ = false;
  }

  void add(const pinrail_thread_t* thread) {
    if (likely(thread->index < kAlone)) {
      stat_counter::increment(&counts_[thread->index].hits);
    } else {
      __atomic_fetch_add(&counts_[kAlone].hits, 1, __ATOMIC_RELAXED);  // relaxed: a statistic
    }
  }

  uint64_t sum() const {
    uint64_t hits = 0;
    for (uint32_t i = 0; i <= kAlone; ++i) hits += __atomic_load_n(&counts_[i].hits, __ATOMIC_RELAXED);
    return hits;
  }

  static constexpr size_t kStride = 128, kBytes = (kAlone + 1) * kStride;

 private:
  struct alignas(kStride) Count {
    uint64_t hits;  // atomic
  };
  Count* counts_;
  bool owns_ = true;
};

}  // namespace pinrail

#endif
