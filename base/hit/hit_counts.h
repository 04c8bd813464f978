// SPDX-License-Identifier: BSD-3-Clause
// hit_counts.h - counts a pool's hits, and the releases that have ended, without a word that threads share.
//
// Owns     a cache line for each thread, in pages that are populated on use.
// Threads  add(), end_releases(), the sums and lines() at any time; construction and destruction exclude them. API
//          context.
#ifndef PINRAIL_BASE_HIT_HIT_COUNTS_H
#define PINRAIL_BASE_HIT_HIT_COUNTS_H

#include <sys/mman.h>

#include <algorithm>
#include <new>

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
  ~HitCounts() { munmap(counts_, kBytes); }
  HitCounts(const HitCounts&) = delete;
  HitCounts& operator=(const HitCounts&) = delete;

  void add(const pinrail_thread_t* thread) {
    uint64_t* const count = &counts_[std::min(thread->index, kAlone)].hits;
    if (thread->index < kAlone) {
      stat_counter::increment(count);
    } else {
      __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);  // relaxed: a statistic
    }
  }

  uint64_t sum() const {
    uint64_t hits = 0;
    for (uint32_t i = 0; i <= kAlone; ++i) hits += __atomic_load_n(&counts_[i].hits, __ATOMIC_RELAXED);
    return hits;
  }

  // The thread does not use the pool any more for so many registrations that it has given back. release: pairs with the
  // acquire loads in ended_releases(), after which the pool may be destroyed.
  void end_releases(const pinrail_thread_t* thread, uint64_t count) {
    uint64_t* const ended = &counts_[std::min(thread->index, kAlone)].ended_releases;
    if (thread->index < kAlone) {
      __atomic_store_n(ended, __atomic_load_n(ended, __ATOMIC_RELAXED) + count, __ATOMIC_RELEASE);
    } else {
      __atomic_fetch_add(ended, count, __ATOMIC_RELEASE);
    }
  }
  uint64_t ended_releases() const {
    uint64_t ended = 0;
    for (uint32_t i = 0; i <= kAlone; ++i) ended += __atomic_load_n(&counts_[i].ended_releases, __ATOMIC_ACQUIRE);
    return ended;
  }

  // The counter of thread i < kAlone is lines()[16 * i], as pinrail_shortcut_t says.
  uint64_t* lines() { return &counts_[0].hits; }

 private:
  struct alignas(128) Count {
    uint64_t hits;  // atomic, as the other
    uint64_t ended_releases;
  };
  static_assert(sizeof(Count) == 16 * sizeof(uint64_t), "as the contract of shortcuts says");
  static constexpr size_t kBytes = (kAlone + 1) * sizeof(Count);
  Count* counts_;
};

}  // namespace pinrail

#endif
