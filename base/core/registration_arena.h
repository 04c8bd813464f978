// SPDX-License-Identifier: BSD-3-Clause
// registration_arena.h - memory of registrations: type-stable until the process ends.
//
// Owns     slabs of registrations, by size of tail. They are never unmapped and never serve anything else.
// Threads  all functions may run together. Not in hook context.
//
// A1  The state word of a registration keeps its generation for ever rising, also while it is free.
// A2  A free registration has no flags, and its references sum up to 0 (references.h).
// A3  Memory that was counted per thread serves only registrations that are (C2 of references.h).
#ifndef PINRAIL_BASE_CORE_REGISTRATION_ARENA_H
#define PINRAIL_BASE_CORE_REGISTRATION_ARENA_H

#include <pinrail/component.h>

#include "base/core/status.h"

namespace pinrail::arena {

constexpr size_t kTailAlignment = 64;
constexpr size_t kMaxTail = 64 * 1024;

// Zeroed but for state and tail_size, with the generation raised and nothing else in state.
// OUT_OF_RESOURCE; BAD_PARAM for a tail over kMaxTail.
Status allocate(size_t tail_size, pinrail_counting_t counting, pinrail_registration_t** reg_out);

void free(pinrail_registration_t* reg);

void* tail_of(const pinrail_registration_t* reg);
pinrail_registration_t* of_tail(const void* tail);

}  // namespace pinrail::arena

#endif
