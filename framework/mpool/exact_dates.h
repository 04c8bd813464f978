// SPDX-License-Identifier: BSD-3-Clause
// exact_dates.h - when was it used last? Dates for the LRU list, without a word that two threads write: a clock that
// all share, and so a locked instruction, would make each hit wait for the memory of the one before it.
//
// Threads  use() at any time; advance() one at a time (the lock of the cache).
//
// D1  The uses of one thread have rising dates. Between threads dates are exact to an epoch, which advance() begins:
//     what comes after it is dated later than all that came before.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_DATES_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_DATES_H

#include <pinrail/component.h>

#include <algorithm>

namespace pinrail::exact {

class Dates {
 public:
  uint64_t use(const pinrail_thread_t* thread) {
    const uint64_t epoch = __atomic_load_n(&epoch_, __ATOMIC_RELAXED);  // relaxed: only an order hangs on it
    uint64_t* const last = &lasts_[std::min(thread->index, kAlone)].date;
    const uint64_t date = std::max(__atomic_load_n(last, __ATOMIC_RELAXED), epoch) + 1;
    __atomic_store_n(last, date, __ATOMIC_RELAXED);
    return date;
  }

  // A date later than all so far, and earlier than all to come.
  uint64_t advance() {
    const uint64_t epoch = epoch_ + kUses;
    __atomic_store_n(&epoch_, epoch, __ATOMIC_RELAXED);
    return epoch;
  }

 private:
  static constexpr uint32_t kAlone = 63;                // threads with a line of their own; the others share the last
  static constexpr uint64_t kUses = uint64_t{1} << 32;  // that a thread may make in an epoch
  struct alignas(128) Last {
    uint64_t date = 0;  // atomic
  };
  alignas(128) uint64_t epoch_ = kUses;  // atomic
  Last lasts_[kAlone + 1];
};

}  // namespace pinrail::exact

#endif
