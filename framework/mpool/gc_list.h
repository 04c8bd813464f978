// SPDX-License-Identifier: BSD-3-Clause
// gc_list.h - the registrations of one pool that an event has ended while they were idle: they wait for a call, or for
// the gc thread, to return them to the device.
//
// Owns     the list and its size, and the registrations on it: the event owned them (registration/S2), and
//          take_locked() gives them to its caller.
// Threads  all functions may run together; take_locked() under the cache lock.
// Hook     push(), bytes(), and what ends in _hook.
//
// gc_list/D1  What hooks push is taken by exchanging the head for NULL, in no other way. What a caller leaves of it is
//     in rest_, under the cache lock.
//
// bytes() is what all that was pushed and not yet taken is charged (charge_of()). It may lag: it serves as a bound.
#ifndef PINRAIL_FRAMEWORK_MPOOL_GC_LIST_H
#define PINRAIL_FRAMEWORK_MPOOL_GC_LIST_H

#include <atomic>

#include "base/sync/lock.h"
#include "framework/mpool/pool_area.h"

namespace pinrail::mpool {

class GcList {
 public:
  explicit GcList(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // What push() found.
  struct Growth {
    bool was_empty;
    bool exceeds_limit;  // for the first time since it was below
  };
  // A chain linked by gc_next, from first to last.
  Growth push(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes) {
    // seq_cst: is_due_ is looked at afterwards; pairs with clear_due().
    const uint64_t waiting = bytes_.fetch_add(bytes) + bytes;
    pinrail_registration_t* head = pushed_.load(std::memory_order_relaxed);
    do {
      area_of(last).gc_next = head;
      // release: the areas are written before they are linked; pairs with the acquire in take_locked().
    } while (!pushed_.compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
    return {head == nullptr, waiting > limit_bytes_ && !is_due_.exchange(true)};
  }

  // Takes some, at most so many. Returns how many these are.
  size_t take_locked(pinrail_registration_t** regs_out, size_t most) {
    assert_rank_held(LockRank::cache);
    pinrail_registration_t* rest = rest_.load(std::memory_order_relaxed);  // relaxed: it changes under the lock
    // acquire: pairs with the release in push().
    if (rest == nullptr) rest = pushed_.exchange(nullptr, std::memory_order_acquire);
    size_t count = 0;
    uint64_t bytes = 0;
    for (; rest != nullptr && count != most; rest = area_of(rest).gc_next) {
      regs_out[count++] = rest;
      bytes += charge_of(rest);
    }
    rest_.store(rest, std::memory_order_relaxed);
    clear_due(bytes_.fetch_sub(bytes) - bytes);
    return count;
  }

  // relaxed: a hint.
  bool is_empty() const {
    return pushed_.load(std::memory_order_relaxed) == nullptr && rest_.load(std::memory_order_relaxed) == nullptr;
  }
  // More than limit_bytes wait: the next call that is no hit drains all.
  bool is_due() const { return is_due_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // An event adds bytes and then sets is_due_; this clears it and then looks at the bytes again. All are seq_cst, so
  // one of the two sees the other.
  void clear_due(uint64_t left) {
    if (left > limit_bytes_ || !is_due()) return;
    is_due_.store(false);
    if (bytes_.load() > limit_bytes_) is_due_.store(true);
  }

  const uint64_t limit_bytes_;
  // What events and drains write: one line.
  alignas(64) std::atomic<pinrail_registration_t*> pushed_{nullptr};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> is_due_{false};
  std::atomic<pinrail_registration_t*> rest_{nullptr};  // changes under the cache lock
};

}  // namespace pinrail::mpool

#endif
