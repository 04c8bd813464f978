// SPDX-License-Identifier: BSD-3-Clause
// start_hints.h - hints for all threads and pools: which registrations may begin in this page? The second lookup of a
// register call.
//
// Owns     nothing. Its table lasts until the process ends; base/hit/hints.h says what holds for hints.
// Threads  all functions may run together. API context.
#ifndef PINRAIL_BASE_HIT_START_HINTS_H
#define PINRAIL_BASE_HIT_START_HINTS_H

#include "base/hit/hints.h"

namespace pinrail::start_hints {

extern Hints hints __attribute__((visibility("hidden")));

// Which registrations of a pool share a line does not depend on where the pool lies. The upper half of the product
// chooses the line: it spreads starts at equal distances more evenly than chance does.
inline uint64_t hash_of(const void* pool, uintptr_t base) {
  constexpr unsigned kPageShift = 12;
  constexpr uint64_t kMixes = 0x9E3779B97F4A7C15u;
  const uint64_t mixed = (base >> kPageShift) * kMixes ^ reinterpret_cast<uintptr_t>(pool) * kMixes;
  return mixed << 32 | mixed >> 32;
}

// Whether the registration, whose word was loaded before, says of itself that it is this pool's and contains the range,
// with these traits (registration/S3). Rights are compared when a reference is held: a registrar may write them.
inline bool is_answer(const pinrail_registration_t* reg, const void* pool, const Span& span, uint32_t traits) {
  const Span own =
      Span::of(__atomic_load_n(&reg->base, __ATOMIC_RELAXED), __atomic_load_n(&reg->length, __ATOMIC_RELAXED));
  return own.contains(span) && __atomic_load_n(&reg->pool, __ATOMIC_RELAXED) == pool &&
         __atomic_load_n(&reg->traits, __ATOMIC_RELAXED) == traits;
}

// Takes a reference of a registration that begins in the page of this base and answers the request. Returns false if no
// entry leads to one. too_few_rights: called with a handle of one that has not all the rights, to drop it.
template <typename TooFewRights>
inline bool find(const void* pool, uintptr_t base, const Span& span, uint32_t access, pinrail_handle_t* handle_out,
                 TooFewRights&& too_few_rights) {
  return hints.find(arena::chunks(), hash_of(pool, base), [&](pinrail_registration_t* reg, uint64_t word) {
    const uint64_t generation = state::generation(word);
    if (!is_answer(reg, pool, span, access & PINRAIL_TRAITS_MASK) || !take_quick(reg, generation)) return false;
    if ((access & PINRAIL_RIGHTS_MASK & ~reg->rights) != 0) {
      too_few_rights(pinrail_handle_t{reg, generation});
      return false;
    }
    mark_used(reg);
    *handle_out = {reg, generation};
    return true;
  });
}

// Enters a registration that the calling thread holds. May map a larger table: the caller holds no lock.
void remember(const pinrail_registration_t* reg);

// In a forked child, before any other call.
inline void fork_reinit() { hints.fork_reinit(); }

}  // namespace pinrail::start_hints

#endif
