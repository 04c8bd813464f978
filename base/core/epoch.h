// SPDX-License-Identifier: BSD-3-Clause
// epoch.h - one word of the process that moves on whenever something may have ceased to be true of cached
// registrations: at a miss, and when one is sealed, killed or made an orphan. Uses are dated with it.
//
// Threads  all functions at any time.
// Hook     all functions.
//
// E1  Who makes a registration untakeable changes its state word first, then moves the epoch on, then sums, with a
//     membarrier in between (references.h). So who counts a reference first, and then finds the epoch where it was when
//     the registration was takeable, has counted one that each later sum sees.
// E2  It only rises, and is never 0. Its low 16 bits are: versions stand there where an epoch is kept (starts.h).
#ifndef PINRAIL_BASE_CORE_EPOCH_H
#define PINRAIL_BASE_CORE_EPOCH_H

#include <cstdint>

namespace pinrail::epoch {

constexpr uint64_t kStep = uint64_t{1} << 16;
constexpr uint64_t kFirst = kStep;

// acquire: looked at before a state word, in one place; pairs with move_on().
inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// acq_rel: behind the state words that were changed.
inline void move_on(uint64_t* word) { __atomic_fetch_add(word, kStep, __ATOMIC_ACQ_REL); }

}  // namespace pinrail::epoch

#endif
