// SPDX-License-Identifier: BSD-3-Clause
// grdma_in_flight.h - what other threads are doing with one pool outside its own calls, and destroy() waits for.
//
// Threads  all functions at any time. Each end_ follows its begin_, on the same thread.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_IN_FLIGHT_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_IN_FLIGHT_H

#include <atomic>
#include <cstdint>

#include "base/hit/hit_counts.h"

namespace pinrail::grdma {

class InFlight {
 public:
  // counts: the pool's; it has the releases that ended.
  explicit InFlight(HitCounts* counts) : counts_(*counts) {}

  // Registrations are being given back: from when they were claimed, or summed to 0, until the library has them again.
  // relaxed: the cache lock is taken before they are dismissed.
  void begin_releases(uint64_t count) { releases_.fetch_add(count, std::memory_order_relaxed); }
  // The same under the cache lock, for one that is evicted.
  void begin_eviction() { evictions_.store(evictions_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  uint64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }
  void end_releases(const pinrail_thread_t* thread, uint64_t count) { counts_.end_releases(thread, count); }

  // A thread takes dead registrations off a list.
  void begin_drain() { drains_.fetch_add(1, std::memory_order_relaxed); }
  // release, here and in end_visit(): pairs with the acquire in is_idle(), after which the pool is destroyed.
  void end_drain() { drains_.fetch_sub(1, std::memory_order_release); }
  // relaxed: a hint.
  bool is_draining() const { return drains_.load(std::memory_order_relaxed) != 0; }

  // A call into another pool of the cache drains this one. relaxed: under the cache lock, as Pool::closing_ is set.
  void begin_visit() { visits_.fetch_add(1, std::memory_order_relaxed); }
  void end_visit() { visits_.fetch_sub(1, std::memory_order_release); }

  bool is_idle() const {
    return visits_.load(std::memory_order_acquire) + releases() + drains_.load(std::memory_order_acquire) == 0;
  }
  // relaxed: a release that this misses began later than the call.
  bool is_releasing() const { return releases() + drains_.load(std::memory_order_relaxed) != 0; }

 private:
  // Ends are read before begins: so no end is counted without its begin.
  uint64_t releases() const {
    const uint64_t ended = counts_.ended_releases();
    return releases_.load(std::memory_order_relaxed) + evictions_.load(std::memory_order_relaxed) - ended;
  }

  HitCounts& counts_;
  std::atomic<uint64_t> releases_{0};   // begun, but for evictions
  std::atomic<uint64_t> evictions_{0};  // begun; changes under the cache lock
  std::atomic<uint64_t> drains_{0};
  std::atomic<uint64_t> visits_{0};
};

}  // namespace pinrail::grdma

#endif
