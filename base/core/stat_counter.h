// SPDX-License-Identifier: BSD-3-Clause
// stat_counter.h - counters for statistics. No decision depends on them.
//
// Threads  One thread increments a counter; any thread may read it.
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_STAT_COUNTER_H
#define PINRAIL_BASE_CORE_STAT_COUNTER_H

#include <cstdint>

#include "base/core/compiler.h"

namespace pinrail::stat_counter {

// Called by the one thread that writes the counter. relaxed, without a read-modify-write: no other data depends on it.
__attribute__((always_inline)) inline void increment(uint64_t* counter) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  asm("addq $1, %0" : "+m"(*counter) : : "cc");  // the same as below, which compilers make three instructions of
#else
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
#endif
}

}  // namespace pinrail::stat_counter

#endif
