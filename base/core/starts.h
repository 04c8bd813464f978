// SPDX-License-Identifier: BSD-3-Clause
// starts.h - which registration starts at this address? The readers' side of a hash table that an index offers: most
// hits ask for the very start of a buffer, and find it in one line of memory instead of on a way down a tree.
//
// The table may say "not here" of anything; then the index is asked. So readers need no locks and no versions.
//
// Owns     nothing. The index owns the table (pinrail_starts_t in component.h) and changes it while others read.
// Threads  all functions at any time.
//
// S1  A way names a registration only while that is in the index.
// S2  Only registrations that are counted per thread are in, so a count that met a later life of one does no harm.
// S3  Who holds a reference to what a way named, and then sees the way unchanged, holds what is in this index; and
//     while he holds it, it does not change.
#ifndef PINRAIL_BASE_CORE_STARTS_H
#define PINRAIL_BASE_CORE_STARTS_H

#include "base/core/references.h"

namespace pinrail::starts {

// A way: a registration's address below, 16 bits of its start's hash above; 0: free.
constexpr unsigned kTagShift = 48;
constexpr uint64_t kAddressMask = (uint64_t{1} << kTagShift) - 1;
constexpr unsigned kWays = 4;       // of a group: as many as find_in() looks at
constexpr unsigned kMostBits = 20;  // of the number of groups

inline pinrail_registration_t* named_by(uint64_t way) {
  return reinterpret_cast<pinrail_registration_t*>(way & kAddressMask);  // NOLINT(performance-no-int-to-ptr)
}
inline uint64_t load(const uint64_t* way) { return __atomic_load_n(way, __ATOMIC_ACQUIRE); }  // pairs with the index's

// Two rounds: after one, buffers in equal distances still meet in some groups and leave others empty. The upper bits
// are the good ones.
inline uint64_t hash_of(uintptr_t base) {
  uint64_t hash = base * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
  return hash;
}

// Groups [0, count): those that the last doubling has not reached yet serve two homes.
// relaxed: whatever a reader makes of mask and count, it stays within the reservation, and overlooks at worst.
inline size_t home_of(const pinrail_starts_t& table, uint64_t hash) {
  const size_t mask = __atomic_load_n(&table.mask, __ATOMIC_RELAXED);
  const size_t home = hash & mask;
  return home < __atomic_load_n(&table.count, __ATOMIC_RELAXED) ? home : home & (mask >> 1);
}
inline size_t first_home(const pinrail_starts_t& table, uint64_t hash) {
  return home_of(table, hash >> (kTagShift - kMostBits));
}
inline size_t second_home(const pinrail_starts_t& table, uint64_t hash) {
  return home_of(table, hash >> (kTagShift - 2 * kMostBits));
}

// The way of a group that has the hash; NULL if none has. All four are looked at, and counted in as bits: which of them
// it is cannot be predicted, and a wrong guess costs more than the other three.
inline const uint64_t* find_in(const uint64_t* group, uint64_t hash) {
  unsigned bits = 0;
  const auto look = [&](const uint64_t* way) { bits = 2 * bits + ((load(way) ^ hash) <= kAddressMask ? 1 : 0); };
  look(group + 3);
  look(group + 2);
  look(group + 1);
  look(group);
  return bits == 0 ? nullptr : group + __builtin_ctz(bits);
}

__attribute__((noinline)) inline const uint64_t* find_in_second(const pinrail_starts_t& table, uint64_t hash) {
  return find_in(table.ways + kWays * second_home(table, hash), hash);
}

inline const uint64_t* find(const pinrail_starts_t& table, uintptr_t base) {
  const uint64_t hash = hash_of(base);
  const uint64_t* found = find_in(table.ways + kWays * first_home(table, hash), hash);
  return found != nullptr ? found : find_in_second(table, hash);
}

// Whether it answers a request for that range: nothing that was asked for is missing, and of the traits nothing else is
// there.
inline bool covers(const pinrail_registration_t* reg, uintptr_t base, size_t length, uint32_t access) {
  const uint32_t differs = (reg->rights | reg->traits) ^ access;
  return (differs & (access | PINRAIL_TRAITS_MASK)) == 0 && reinterpret_cast<uintptr_t>(reg->base) == base &&
         reg->length >= length;
}

// A registration that starts at base and covers the rest, with a reference taken; NULL if the table knows of none.
__attribute__((always_inline)) inline pinrail_registration_t* take(const pinrail_thread_t* thread,
                                                                   const pinrail_starts_t& table, uintptr_t base,
                                                                   size_t length, uint32_t access) {
  const uint64_t* way = find(table, base);
  if (way == nullptr) return nullptr;
  const uint64_t named = load(way);
  pinrail_registration_t* reg = named_by(named);
  if (reg == nullptr || !references::hold(thread, reg)) return nullptr;
  if (load(way) == named && covers(reg, base, length, access)) return reg;
  references::undo(thread, reg);
  return nullptr;
}

}  // namespace pinrail::starts

#endif
