// SPDX-License-Identifier: BSD-3-Clause
// stat_counter.h - figures of statistics: right by themselves, and nothing hangs on them.
//
// Threads  as said.
#ifndef PINRAIL_BASE_CORE_STAT_COUNTER_H
#define PINRAIL_BASE_CORE_STAT_COUNTER_H

#include <cstdint>

namespace pinrail::stat_counter {

// One that the calling thread alone writes, and others may read. relaxed, and no read-modify-write.
__attribute__((always_inline)) inline void increment(uint64_t* counter) {
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

}  // namespace pinrail::stat_counter

#endif
