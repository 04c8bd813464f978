// SPDX-License-Identifier: BSD-3-Clause
// budget.h - what the pools of one cache_name may have registered, and have (R8).
//
// Owns     numbers.
// Threads  one at a time (the lock of the cache). Not in hook context.
//
// budget/N1  bytes and count never exceed the limits: a caller that adds has asked for room under the same lock.
#ifndef PINRAIL_FRAMEWORK_MPOOL_BUDGET_H
#define PINRAIL_FRAMEWORK_MPOOL_BUDGET_H

#include <algorithm>
#include <cstdint>

namespace pinrail::mpool {

struct Limits {
  uint64_t bytes = UINT64_MAX;
  uint64_t count = UINT64_MAX;
};

// The limits that a pool asks for. One that its creator named must agree with the cache's (R11).
struct WantedLimits : Limits {
  bool explicit_bytes = false;
  bool explicit_count = false;

  bool differ_from(const Limits& other) const {
    return (explicit_bytes && bytes != other.bytes) || (explicit_count && count != other.count);
  }
};

struct Usage {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t peak_bytes = 0;
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  const Usage& usage() const { return usage_; }

  // Whether a registration of that length fits while nothing else is registered.
  bool could_ever_hold(uint64_t bytes) const { return bytes <= limits_.bytes && limits_.count != 0; }

  // The rest for lengths that could_ever_hold() accepts.
  bool has_room_for(uint64_t bytes) const {
    return usage_.bytes <= limits_.bytes - bytes && usage_.count < limits_.count;
  }
  // Whether the place of one that leaves is enough, and no byte of it is left over.
  bool has_room_instead_of(uint64_t leaving_bytes, uint64_t bytes) const {
    return leaving_bytes <= bytes && usage_.bytes - leaving_bytes <= limits_.bytes - bytes &&
           usage_.count <= limits_.count;
  }
  // How much must leave before there is room.
  uint64_t missing_bytes(uint64_t bytes) const {
    const uint64_t most = limits_.bytes - bytes;
    return usage_.bytes > most ? usage_.bytes - most : 0;
  }
  uint64_t missing_count() const { return usage_.count < limits_.count ? 0 : usage_.count - limits_.count + 1; }
  // Whether any one registration is enough to make room: none that was ever added is shorter than what is missing.
  bool any_one_suffices(uint64_t bytes) const { return missing_bytes(bytes) <= shortest_ && missing_count() <= 1; }

  void add(uint64_t bytes) {
    usage_.bytes += bytes;
    usage_.count += 1;
    usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.bytes);
    shortest_ = std::min(shortest_, bytes);
  }
  void remove(uint64_t bytes) {
    usage_.bytes -= bytes;
    usage_.count -= 1;
  }

  // budget/N1.
  bool is_within_limits() const { return usage_.bytes <= limits_.bytes && usage_.count <= limits_.count; }

 private:
  const Limits limits_;
  Usage usage_;
  uint64_t shortest_ = UINT64_MAX;  // length of what was ever added
};

}  // namespace pinrail::mpool

#endif
