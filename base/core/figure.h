// SPDX-License-Identifier: BSD-3-Clause
// figure.h - figures of statistics: right by themselves, and nothing hangs on them.
//
// Threads  as said.
#ifndef PINRAIL_BASE_CORE_FIGURE_H
#define PINRAIL_BASE_CORE_FIGURE_H

#include <cstdint>

namespace pinrail::figure {

// One that the calling thread alone writes, and others may read. relaxed, and no read-modify-write.
__attribute__((always_inline)) inline void raise(uint64_t* figure) {
  __atomic_store_n(figure, __atomic_load_n(figure, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

}  // namespace pinrail::figure

#endif
