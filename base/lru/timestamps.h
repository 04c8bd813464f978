// SPDX-License-Identifier: BSD-3-Clause
// timestamps.h - when was it used last? Dates for an LRU list, without a word that two threads write: a clock that all
// share, and so a locked instruction, would make each use wait for the memory of the one before it.
//
// Threads  all functions at any time.
//
// timestamps/D1  The uses of one thread have rising dates. Between threads dates are exact to an epoch of the process,
// which
//     advance() begins: what comes after it is dated later than all that came before.
#ifndef PINRAIL_BASE_LRU_TIMESTAMPS_H
#define PINRAIL_BASE_LRU_TIMESTAMPS_H

#include <pinrail/component.h>

namespace pinrail::timestamps {

constexpr uint64_t kUses = uint64_t{1} << 32;  // that a thread may make in an epoch

// relaxed: only an order hangs on it.
inline uint64_t epoch_of(const pinrail_thread_t* thread) { return __atomic_load_n(thread->dates, __ATOMIC_RELAXED); }

// The date of a use by the calling thread. It waits for no memory but the thread's own. what: if it may be used again
// before anything else is; see is_last().
inline uint64_t use(pinrail_thread_t* thread, const void* what) {
  thread->last_used = what;
  const uint64_t epoch = epoch_of(thread);
  if (thread->last_date < epoch) thread->last_date = epoch;  // seldom: no maximum that each use would wait for
  return ++thread->last_date;
}

// Whether the thread's last use was of this, in this epoch: then another one need not be dated.
inline bool is_last(const pinrail_thread_t* thread, const void* what) {
  return thread->last_used == what && thread->last_date > epoch_of(thread);
}

// A date later than all so far, and earlier than all to come.
inline uint64_t advance(const pinrail_thread_t* thread) {
  return __atomic_add_fetch(thread->dates, kUses, __ATOMIC_RELAXED);
}

}  // namespace pinrail::timestamps

#endif
