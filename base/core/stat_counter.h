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
__attribute__((always_inline)) inline void add(uint64_t* counter, uint64_t amount) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  // The same as below, which compilers make three instructions of.
  asm("addq %1, %0" : "+m"(*counter) : "er"(amount) : "cc");
#else
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + amount, __ATOMIC_RELAXED);
#endif
}

}  // namespace pinrail::stat_counter

#endif
