// SPDX-License-Identifier: BSD-3-Clause
// lock_rank.h - the rank of every lock of Pinrail. A lock that is not in this list must not exist.
//
// Locks are taken in rising order. Debug builds abort on a step down and on two locks of one rank.
#ifndef PINRAIL_BASE_SYNC_LOCK_RANK_H
#define PINRAIL_BASE_SYNC_LOCK_RANK_H

#include <cstdint>

namespace pinrail {

enum class LockRank : uint8_t {
  device = 1,  // serialises the calls of one registrar, or a registrar's calls about what its driver has once for all,
               // and is held across them, so no lock may be held when it is taken. Not rank-checked, because a callback
               // may call into another pool.
  serials = 2,  // which registrars have a lock of rank device. Creation of pools only.
  fork = 3,   // held by init and finalize, and by fork() while it copies the process. No lock is held when it is taken,
              // except by a signal handler that forks: not rank-checked.
  front = 5,  // init, finalize, the list of pools. Start-up and shut-down only.
  pins = 6,   // one pool's table of ranges that were registered ahead of their use. Never taken in a hook.
  monitor = 7,     // of one monitor component: start, stop and its periodic checks. Never taken in a hook.
  patch = 8,       // held while a jump is written into code. Never taken in a hook.
  monitors = 9,    // monitor framework: which monitors see which events. Held while samples of memory are mapped.
  strangers = 10,  // monitor framework: list of other runtimes' subscriptions. Held while a removed subscription's
                   // running calls end.
  subscribe = 11,  // monitor framework: list of subscriptions. Hooks read the list without it.
  gc = 12,         // members of the gc thread. Never taken in a hook, never held while one drains.
  works = 13,      // one pool's list of what helper threads do for it. Never taken in a hook.
  work = 14,       // one such work: its chunks, their order and their references. Never taken in a hook, never held
                   // while a chunk is registered.
  slabs = 14,      // one pool's allocator: free objects and slabs. Never taken in a hook.
  checks = 14,     // what one pool's check of hits knows of registrations. Never taken in a hook. Leaf.
  caches = 15,     // an mpool component's caches by name. Create and destroy only.
  cache = 20,      // order of eviction and budget of one cache_name. May be held while taking pending.
  pending = 25,    // requests that wait for a registration in progress, and the work that a hook has left for a pool.
                   // Hooks may take it: the hook wall begins at this rank.
  index = 30,      // one index. Hooks may take it.
  unindexed = 31,  // registrations of one pool that may be held outside its index. Leaf; hooks may take it.
  slots = 35,      // which slots of an exporter's segment are taken. Leaf; hooks write the words without it.
  tickets = 36,    // an exporter's table of descriptors. Leaf; never taken in a hook.
  arena = 40,      // memory of registrations. Leaf; never taken in a hook.
  threads = 41,    // thread indices. Leaf; never taken in a hook.
  params = 42,     // values of settable parameters. Leaf; never taken in a hook.
  report = 43,     // which messages were already printed. Leaf; never taken in a hook.
  registrar = 50,  // of one registrar component. Leaf: none of the locks above is held with it.
  marks = 51,      // ranges kept out of forked children. Leaf; never taken in a hook.
  mappings = 60,   // the list of known mappings. Leaf; hooks take it under any lock that frees may run under.
};

// Locks that are never held across an allocation, a device call or a log. Hooks may take these alone.
constexpr bool hooks_may_take(LockRank rank) {
  return rank == LockRank::pending || rank == LockRank::index || rank == LockRank::unindexed ||
         rank == LockRank::mappings;
}

}  // namespace pinrail

#endif
