// SPDX-License-Identifier: BSD-3-Clause
// lock_rank.h - every lock of Pinrail, in the order in which they nest. A lock that is not here does not exist.
//
// Take in rising order; debug builds abort on a step down and on two of one rank.
#ifndef PINRAIL_BASE_SYNC_LOCK_RANK_H
#define PINRAIL_BASE_SYNC_LOCK_RANK_H

#include <cstdint>

namespace pinrail {

enum class LockRank : uint8_t {
  device = 1,      // serialises one registrar. Held across its calls, so nothing may be held when it is taken; not
                   // rank-checked, for a callback may call into another pool.
  fork = 3,        // held by init and finalize, and by fork() while it copies the process. Nothing is held before.
  front = 5,       // init, finalize, the list of pools. Start-up and shut-down only.
  monitor = 7,     // one monitor component's own: start, stop and its looking after itself. Never taken in a hook.
  patch = 8,       // while a jump is laid into code. Never taken in a hook.
  monitors = 9,    // monitor framework: which monitors see what. Held while samples of memory are mapped.
  strangers = 10,  // monitor framework: list of other runtimes' subscriptions. Held while one's calls in flight end.
  subscribe = 11,  // monitor framework: list of subscriptions. Hooks read the list without it.
  gc = 12,         // members of the gc thread. Never taken in a hook, never held while one drains.
  caches = 15,     // an mpool component's caches by name. Create and destroy only.
  cache = 20,      // order of eviction and budget of one cache_name. May be held while taking pending.
  pending = 25,    // one pool's registrations under way, or what a hook has left for it to do. Hooks may take it:
                   // from here on the hook wall stands.
  index = 30,      // one index. Leaf; hooks may take it.
  slots = 35,      // which slots of an exporter's segment are taken. Leaf; hooks write the words without it.
  tickets = 36,    // an exporter's table of descriptors. Leaf; never taken in a hook.
  arena = 40,      // memory of registrations. Leaf; never taken in a hook.
  threads = 41,    // thread indices. Leaf; never taken in a hook.
  params = 42,     // values of settable parameters. Leaf; never taken in a hook.
  report = 43,     // what was said already. Leaf; never taken in a hook.
  registrar = 50,  // a registrar component's own. Leaf: no lock above is taken under it, and none of them is held.
  marks = 51,      // ranges kept out of forked children. Leaf; never taken in a hook.
  mappings = 60,   // which mappings are known. Leaf; hooks take it, under whatever may be held while memory is freed.
};

// What nobody holds across a malloc, a device call or a log.
constexpr bool hooks_may_take(LockRank rank) {
  return rank == LockRank::pending || rank == LockRank::index || rank == LockRank::mappings;
}

}  // namespace pinrail

#endif
