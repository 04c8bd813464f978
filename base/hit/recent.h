// SPDX-License-Identifier: BSD-3-Clause
// recent.h - a per-thread table of recent requests and the registrations that answered them: the first lookup of a
// register call.
//
// Owns     nothing. The registration of an entry may be gone; its state word tells (registration/S1).
// Threads  each table belongs to one thread.
// Context  API.
//
// recent/Q1  An entry answers a request at its address, for its pool and access, that is not longer than what its
//     registration covers from there on; and only if that has the entry's generation still. A pool makes its words dead
//     before its memory goes, so an entry of a pool that was at the same address answers nothing.
#ifndef PINRAIL_BASE_HIT_RECENT_H
#define PINRAIL_BASE_HIT_RECENT_H

#include "base/core/compiler.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"

namespace pinrail::recent {

// Where a request belongs in the thread's table. Buffers at equal distances, of any power of two from 64 bytes to 64
// MiB, get entries of their own, but for two of 1,024: the product adds the three groups of ten address bits from bit 6
// on, so that any ten bits in a row decide the ten bits of the index. The pool moves all of its requests by as much, so
// that which of them share an entry, and so what the pool is asked, is the same in each run of a program.
__attribute__((always_inline)) inline RecentRequest* entry_for(const pinrail_thread_t* thread, const void* pool,
                                                               uintptr_t addr) {
  constexpr unsigned kBits = 10;
  static_assert(RecentRequests::kCount == 1 << kBits, "a group is an index");
  constexpr uintptr_t kAdd = 1 + (uintptr_t{1} << kBits) + (uintptr_t{1} << 2 * kBits);
  constexpr uintptr_t kMask = (RecentRequests::kCount - 1) * sizeof(RecentRequest);
  const uintptr_t offset = ((addr * kAdd >> 2 * kBits) + reinterpret_cast<uintptr_t>(pool)) & kMask;
  return reinterpret_cast<RecentRequest*>(reinterpret_cast<char*>(thread->recent) + offset);
}

// Returns whether the entry was stored for such a request. A length of 0 wraps to the largest value.
__attribute__((always_inline)) inline bool matches(const RecentRequest& entry, const void* pool, uintptr_t addr,
                                                   size_t length, uint32_t access) {
  return likely(entry.addr == addr) && likely(entry.pool == pool) && likely(entry.access == access) &&
         likely(length - 1 < entry.covered);
}

// Takes a reference for a request that the entry matches.
__attribute__((always_inline)) inline bool take(const RecentRequest& entry, pinrail_handle_t* handle_out) {
  if (!take_quick(entry.reg, entry.generation)) return false;
  mark_used(entry.reg);
  *handle_out = {entry.reg, entry.generation};
  return true;
}

// Stores a request that was answered by this reference, which the thread holds, for whatever the registration covers
// from its address on. The thread has a record of its own; nothing is stored if that has no memory for requests.
inline void remember(const pinrail_thread_t* thread, const void* pool, uintptr_t addr, uint32_t access,
                     pinrail_handle_t handle) {
  if (unlikely(thread->recent == thread::null_thread.recent)) return;  // it is all threads', which would tear entries
  *entry_for(thread, pool, addr) = {addr, pool, span_of(handle.reg).end - addr, handle.reg, handle.generation, access};
}

}  // namespace pinrail::recent

#endif
