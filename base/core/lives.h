// SPDX-License-Identifier: BSD-3-Clause
// lives.h - one life of a registration in a word, as tables that hits read keep it: its number (registration_arena.h)
// above, its generation below. No two lives are equal.
//
// Threads  all functions at any time.
#ifndef PINRAIL_BASE_CORE_LIVES_H
#define PINRAIL_BASE_CORE_LIVES_H

#include "base/core/registration.h"
#include "base/core/registration_arena.h"

namespace pinrail::lives {

constexpr unsigned kNumberAt = 36;
static_assert(state::kGenerations >> kNumberAt == 0 && arena::kMostNumber >> (64 - kNumberAt) == 0,
              "they share a word");

// generation: as a handle has it.
constexpr uint64_t life_of(uint64_t number, uint64_t generation) {
  return number << kNumberAt | generation >> state::kGenerationShift;
}
constexpr uint64_t generation_of(uint64_t life) { return (life & state::kGenerations) << state::kGenerationShift; }
constexpr uint64_t number_of(uint64_t life) { return life >> kNumberAt; }

}  // namespace pinrail::lives

#endif
