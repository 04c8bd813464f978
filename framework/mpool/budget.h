// SPDX-License-Identifier: BSD-3-Clause
// budget.h - what the pools of one cache_name may have registered, and have (R8).
//
// Owns     numbers.
// Threads  one at a time (the lock of the cache). Not in hook context.
//
// budget/N1  bytes and count never exceed the limits: a caller that adds has asked for room under the same lock. Where
//     the limit of bytes bounds only what is idle, bytes may exceed it; when something was added so, nothing was idle,
//     or others had taken the room as often as pool_cache.h permits.
#ifndef PINRAIL_FRAMEWORK_MPOOL_BUDGET_H
#define PINRAIL_FRAMEWORK_MPOOL_BUDGET_H

#include <atomic>
#include <cstdint>

namespace pinrail::mpool {

struct Limits {
  uint64_t bytes = UINT64_MAX;
  uint64_t count = UINT64_MAX;
  bool bounds_idle_only = false;  // of bytes: what is idle leaves to make room, but what is in use may exceed them
};

// The limits that a pool asks for. One that its creator named must agree with the cache's (R11).
struct WantedLimits : Limits {
  bool explicit_bytes = false;
  bool explicit_count = false;

  bool differ_from(const Limits& other) const {
    const bool may_exceed_other = other.bounds_idle_only && other.bytes != UINT64_MAX;
    return (explicit_bytes && (bytes != other.bytes || may_exceed_other)) || (explicit_count && count != other.count);
  }
};

struct Usage {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t peak_bytes = 0;
  uint64_t added = 0;  // how often a registration was added
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  Usage usage() const { return {bytes_, count_, peak_bytes(), added_}; }
  // May be read without the lock of the others. relaxed: statistics.
  uint64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }

  // Whether a registration of that length fits while nothing else is registered.
  bool could_ever_hold(uint64_t bytes) const {
    return (bytes <= limits_.bytes || limits_.bounds_idle_only) && limits_.count != 0;
  }

  // The rest for lengths that could_ever_hold() accepts.
  bool has_room_for(uint64_t bytes) const { return bytes_ <= most_beside(bytes) && holds(bytes) && has_place(); }
  // Whether it may be added although there is no room for it, because nothing idle is left.
  bool may_exceed() const { return limits_.bounds_idle_only && has_place(); }
  // Whether the place of one that leaves is enough, and no byte of it is left over.
  bool has_room_instead_of(uint64_t leaving_bytes, uint64_t bytes) const {
    return leaving_bytes <= bytes && bytes_ - leaving_bytes <= most_beside(bytes) && holds(bytes) &&
           count_ <= limits_.count;
  }
  // How much must leave before there is room; nothing where that may be exceeded.
  uint64_t missing_bytes(uint64_t bytes) const {
    const uint64_t most = most_beside(bytes);
    return bytes_ > most && !limits_.bounds_idle_only ? bytes_ - most : 0;
  }
  uint64_t missing_count() const { return count_ < limits_.count ? 0 : count_ - limits_.count + 1; }

  void add(uint64_t bytes) {
    count_ += 1;
    replace(0, bytes);
  }
  // As remove() and add().
  void replace(uint64_t leaving_bytes, uint64_t bytes) {
    bytes_ += bytes - leaving_bytes;
    added_ += 1;
    if (bytes_ > peak_bytes()) peak_bytes_.store(bytes_, std::memory_order_relaxed);
  }
  void remove(uint64_t bytes) {
    bytes_ -= bytes;
    count_ -= 1;
  }

  // budget/N1.
  bool is_within_limits() const {
    return (bytes_ <= limits_.bytes || limits_.bounds_idle_only) && count_ <= limits_.count;
  }

 private:
  bool has_place() const { return count_ < limits_.count; }
  bool holds(uint64_t bytes) const { return bytes <= limits_.bytes; }
  uint64_t most_beside(uint64_t bytes) const { return holds(bytes) ? limits_.bytes - bytes : 0; }

  uint64_t bytes_ = 0;
  uint64_t count_ = 0;
  uint64_t added_ = 0;
  std::atomic<uint64_t> peak_bytes_{0};
  const Limits limits_;
};

}  // namespace pinrail::mpool

#endif
