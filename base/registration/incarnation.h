// SPDX-License-Identifier: BSD-3-Clause
// incarnation.h - one use of a registration's memory, from allocation to deregistration, as one 64-bit word: the
// registration's number (registration_arena.h) in the upper bits, its generation in the lower 36. No two incarnations
// are equal. Tables that hits read store this word.
//
// Threads  all functions at any time.
// Hook     All functions.
#ifndef PINRAIL_BASE_REGISTRATION_INCARNATION_H
#define PINRAIL_BASE_REGISTRATION_INCARNATION_H

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::incarnation {

constexpr unsigned kNumberAt = 36;
static_assert(state::kGenerations >> kNumberAt == 0 && arena::kMaxNumber >> (64 - kNumberAt) == 0, "they share a word");

// generation: as in a handle, that is shifted by state::kGenerationShift.
constexpr uint64_t of(uint64_t number, uint64_t generation) {
  return number << kNumberAt | generation >> state::kGenerationShift;
}
constexpr uint64_t generation_of(uint64_t incarnation) {
  return (incarnation & state::kGenerations) << state::kGenerationShift;
}
constexpr uint64_t number_of(uint64_t incarnation) { return incarnation >> kNumberAt; }

}  // namespace pinrail::incarnation

#endif
