// SPDX-License-Identifier: BSD-3-Clause
// stat_counter.h - counters for statistics. No decision depends on them.
//
// Threads  One thread increments a counter; any thread may read it.
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_STAT_COUNTER_H
#define PINRAIL_BASE_CORE_STAT_COUNTER_H

#include <cstdint>

namespace pinrail::stat_counter {

// Called by the one thread that writes the counter. relaxed, without a read-modify-write: no other data depends on it.
__attribute__((always_inline)) inline void increment(uint64_t* counter) {
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

}  // namespace pinrail::stat_counter

#endif
