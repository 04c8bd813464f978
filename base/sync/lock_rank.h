// SPDX-License-Identifier: BSD-3-Clause
// lock_rank.h - the rank of every lock of Pinrail. A lock that is not in this list must not exist.
//
// Locks are taken in rising order. Debug builds abort on a step down and on two locks of one rank. Two locks have no
// rank, and debug builds do not check them: the one that serialises the calls of a registrar (framework/registrar),
// under which a callback may call into another pool; and the one of init, finalize and fork (api_fork.cc), which a
// signal handler that forks may take.
#ifndef PINRAIL_BASE_SYNC_LOCK_RANK_H
#define PINRAIL_BASE_SYNC_LOCK_RANK_H

#include <cstdint>

namespace pinrail {

enum class LockRank : uint8_t {
  device = 1,    // what one thread of a registrar does at a time, and held across calls of the driver or the kernel, so
                 // no lock may be held when it is taken.
  api = 5,       // init, finalize, the list of pools. Start-up and shut-down only.
  monitor = 7,   // of one monitor component: start, stop and its periodic checks. Never taken in a hook.
  monitors = 9,  // monitor framework: which monitors see which events. Held while samples of memory are mapped.
  works = 13,    // one pool's list of what helper threads do for it. Never taken in a hook.
  work = 14,  // one such work: its chunks, their order and their references. Never taken in a hook, never held while a
              // chunk is registered.
  caches = 15,     // an mpool component's caches by name, or its exporters. Taken before cache, never in a hook.
  cache = 20,      // order of eviction and budget of one cache_name. May be held while taking pending.
  pending = 25,    // requests that wait for a registration in progress, and the work that a hook has left for a pool.
                   // Hooks may take it: the hook wall begins at this rank.
  index = 30,      // one index. Hooks may take it.
  unindexed = 31,  // registrations of one pool that may be held outside its index. Hooks may take it.
  params = 39,     // values of parameters. Held while a message about one is reported, which takes a leaf.
  leaf = 40,  // no lock is taken while it is held, and no hook takes it: a list or a table of one object, which says
              // at the lock what it guards.
  mappings = 60,  // the list of known mappings. Leaf; hooks take it under any lock that frees may run under.
};

// Locks that are never held across an allocation, a device call or a log. Hooks may take these alone.
constexpr bool hooks_may_take(LockRank rank) {
  return rank == LockRank::pending || rank == LockRank::index || rank == LockRank::unindexed ||
         rank == LockRank::mappings;
}

}  // namespace pinrail

#endif
