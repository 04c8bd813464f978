// SPDX-License-Identifier: BSD-3-Clause
// incarnation.h - one life of a registration in a word, as tables that hits read keep it: its number
// (registration_arena.h) above, its generation below. No two lives are equal.
//
// Threads  all functions at any time.
#ifndef PINRAIL_BASE_REGISTRATION_INCARNATION_H
#define PINRAIL_BASE_REGISTRATION_INCARNATION_H

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::incarnation {

constexpr unsigned kNumberAt = 36;
static_assert(state::kGenerations >> kNumberAt == 0 && arena::kMaxNumber >> (64 - kNumberAt) == 0, "they share a word");

// generation: as a handle has it.
constexpr uint64_t of(uint64_t number, uint64_t generation) {
  return number << kNumberAt | generation >> state::kGenerationShift;
}
constexpr uint64_t generation_of(uint64_t incarnation) {
  return (incarnation & state::kGenerations) << state::kGenerationShift;
}
constexpr uint64_t number_of(uint64_t incarnation) { return incarnation >> kNumberAt; }

}  // namespace pinrail::incarnation

#endif
