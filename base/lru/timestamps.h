// SPDX-License-Identifier: BSD-3-Clause
// timestamps.h - dates of uses for an LRU list, without a word that two threads write: with a shared clock each use
// would be a locked instruction and would wait for the previous use's memory.
//
// Threads  All functions may run together; each thread dates its own uses.
// Context  any; no lock.
//
// timestamps/D1  The dates of one thread's uses rise. Between threads dates are exact to an epoch of the process.
//     advance() begins an epoch: uses after it have later dates than all uses before it.
#ifndef PINRAIL_BASE_LRU_TIMESTAMPS_H
#define PINRAIL_BASE_LRU_TIMESTAMPS_H

#include "base/core/thread_record.h"

namespace pinrail::timestamps {

constexpr uint64_t kUses = uint64_t{1} << 32;  // the number of uses that a thread may date in one epoch

// relaxed: only the order of eviction depends on it.
inline uint64_t epoch_of(const pinrail_thread_t* thread) { return __atomic_load_n(thread->dates, __ATOMIC_RELAXED); }

// Returns the date of a use by the calling thread; it reads no memory but the thread's own and the epoch. what: the
// object that is used, for is_last().
inline uint64_t use(pinrail_thread_t* thread, const void* what) {
  thread->last_used = what;
  const uint64_t epoch = epoch_of(thread);
  // A branch that is rarely taken, instead of a maximum that each use would wait for.
  if (thread->last_date < epoch) thread->last_date = epoch;
  return ++thread->last_date;
}

// Returns whether the thread's last use was of the same object in the same epoch. Then this use needs no new date.
inline bool is_last(const pinrail_thread_t* thread, const void* what) {
  return thread->last_used == what && thread->last_date > epoch_of(thread);
}

// Begins an epoch and returns its date: later than all dates so far, and earlier than all that follow.
inline uint64_t advance(const pinrail_thread_t* thread) {
  return __atomic_add_fetch(thread->dates, kUses, __ATOMIC_RELAXED);
}

}  // namespace pinrail::timestamps

#endif
