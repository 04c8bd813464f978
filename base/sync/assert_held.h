// SPDX-License-Identifier: BSD-3-Clause
// assert_held.h - for code that holds a lock under another name than the one that a function requires it by. Clang's
// analysis believes the caller; a build with --enable-debug looks whether the thread holds a lock of that rank.
//
// Threads  All functions may run together.
// Hook     All functions.
#ifndef PINRAIL_BASE_SYNC_ASSERT_HELD_H
#define PINRAIL_BASE_SYNC_ASSERT_HELD_H

#include "base/sync/lock.h"

#define ASSERT_CAPABILITY(x) PINRAIL_TSA(assert_capability(x))

namespace pinrail {

inline void assert_rank_held([[maybe_unused]] LockRank rank) {
#ifdef PINRAIL_DEBUG
  if ((held_ranks >> static_cast<unsigned>(rank) & 1) != 0) return;
  std::fprintf(stderr, "pinrail: a lock of rank %u is not held where it must be\n", static_cast<unsigned>(rank));
  std::abort();
#endif
}

template <typename Lock>
void assert_held([[maybe_unused]] const Lock& lock, LockRank rank) ASSERT_CAPABILITY(lock) {
  assert_rank_held(rank);
}

}  // namespace pinrail

#endif
