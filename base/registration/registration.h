// SPDX-License-Identifier: BSD-3-Clause
// registration.h - the state word of a registration.
//
// One 64-bit word holds flags, generation and references, so that one compare-and-swap decides every race.
//
//  bit  0      indexed        in the index; a find may take a reference
//  bit  1      dead           left the index, or never was in it; no new reference may be taken
//  bit  2      per thread     references are counted per thread (references.h); otherwise in this word, and the thread
//                             that drops the last reference sees it
//  bit  3      evict claim    indexed, and an evictor is summing its references; the next hit must revoke the claim.
//                             Together with "dead": it was evicted, and no hit revoked the claim
//  bit  4      orphan         its pool was destroyed and the device registration with it; drops only count down
//  bit  5      release claim  dead, and one thread is deregistering it; for pools in which several threads may see the
//                             last drop
//  bit  6      summed         dead, counted per thread, and held when it was summed (references/C5)
//  bits 8-43   generation     rises when the memory is freed
//  bits 44-63  references     of a registration that is not counted per thread; at most half of the range is used
//
// Threads  All functions may run together.
// Hook     All functions.
//
// registration/S1  A reference is taken only while the registration is indexed and not claimed by an evictor, or by
//     revoking that claim in the same exchange.
// registration/S2  Exactly one thread sees the transition to "dead and unreferenced"; that thread deregisters.
// registration/S3  Registration memory is type-stable, so the state may be read through a stale pointer; the generation
//     shows that the pointer is stale.
// registration/S4  Every change of the word is a compare-and-swap or sets bits, so that references survive it; but for
//     registrations that are one thread's alone, which is stored: pending ones, and those that are freed.
#ifndef PINRAIL_BASE_REGISTRATION_REGISTRATION_H
#define PINRAIL_BASE_REGISTRATION_REGISTRATION_H

#include <pinrail/types.h>

#include "base/core/span.h"

namespace pinrail {

namespace state {
constexpr uint64_t kIndexed = 1 << 0;
constexpr uint64_t kDead = 1 << 1;
constexpr uint64_t kPerThread = 1 << 2;
constexpr uint64_t kEvictClaim = 1 << 3;
constexpr uint64_t kOrphan = 1 << 4;
constexpr uint64_t kReleaseClaim = 1 << 5;
constexpr uint64_t kSummed = 1 << 6;
constexpr uint64_t kFlags = 0xff;
constexpr unsigned kGenerationShift = 8;
constexpr uint64_t kGenerations = (uint64_t{1} << 36) - 1;
constexpr uint64_t kGenerationMask = kGenerations << kGenerationShift;
constexpr unsigned kReferenceShift = 44;
constexpr uint64_t kOne = uint64_t{1} << kReferenceShift;
constexpr uint64_t kReferences = ~(kOne - 1);
constexpr uint64_t kMaxReferences = (kReferences >> kReferenceShift) / 2;

constexpr uint64_t references(uint64_t word) { return word >> kReferenceShift; }
// The generation in place, as handles store it, so that a comparison takes one mask.
constexpr uint64_t generation(uint64_t word) { return word & kGenerationMask; }
constexpr uint64_t next_generation(uint64_t word) {
  return (word + (uint64_t{1} << kGenerationShift)) & kGenerationMask;
}

inline uint64_t load(const pinrail_registration_t* reg) {
  // acquire: pairs with the exchange that published the registration, and with every exchange below.
  return __atomic_load_n(&reg->state, __ATOMIC_ACQUIRE);
}

// As load(), after a reference was counted in the own count (references.h). seq_cst, as that count is: pairs with
// exchange(), by which a registration is claimed or killed before its own count is read.
inline uint64_t load_after_count(const pinrail_registration_t* reg) {
  return __atomic_load_n(&reg->state, __ATOMIC_SEQ_CST);
}

// Replaces *expected by desired. Returns false, with the current word in *expected, if the word has changed.
inline bool exchange(pinrail_registration_t* reg, uint64_t* expected, uint64_t desired) {
  // seq_cst: a drop publishes its holder's accesses to the thread that acts on the last drop; pairs with
  // load_after_count() as well.
  return __atomic_compare_exchange_n(&reg->state, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

// Replaces the flags, adds references, and keeps the rest; returns the new word. release: the fields are filled before
// another thread sees the new phase.
inline uint64_t set(pinrail_registration_t* reg, uint64_t flags, int references_more = 0) {
  uint64_t word = load(reg);
  uint64_t next;
  do {
    next = ((word & ~kFlags) | flags) + static_cast<uint64_t>(references_more) * kOne;
  } while (!exchange(reg, &word, next));
  return next;
}

// As set(), of a pending registration: until it is indexed or dead no other thread changes its word (registration/S4).
inline void set_own(pinrail_registration_t* reg, uint64_t flags, int references) {
  const uint64_t next = ((load(reg) & ~kFlags) | flags) + static_cast<uint64_t>(references) * kOne;
  __atomic_store_n(&reg->state, next, __ATOMIC_RELEASE);  // release: as in set()
}

// Starts the next generation without flags, which makes all handles stale. kPerThread stays (references/C2). The
// registration is dead and unreferenced, and the calling thread frees it: what others do with stale handles changes no
// word that is not indexed and has no reference, nor one that is claimed for its release (registration/S4).
inline void renew(pinrail_registration_t* reg) {
  const uint64_t word = load(reg);
  // release: pairs with load(). A thread that sees the new generation sees what was done to the old one.
  __atomic_store_n(&reg->state, (word & kPerThread) | next_generation(word), __ATOMIC_RELEASE);
}
}  // namespace state

inline Span span_of(const pinrail_registration_t* reg) { return Span::of(reg->base, reg->length); }
inline uint64_t generation_of(const pinrail_registration_t* reg) { return state::generation(state::load(reg)); }
// Whether requests find it: it was inserted, and neither an event nor an eviction has ended it.
inline bool is_indexed(const pinrail_registration_t* reg) { return (state::load(reg) & state::kIndexed) != 0; }

// Takes a reference of a SHARED registration: in its state word. Returns false if it is not indexed, has another
// generation than word, or is full. Revokes an evictor's claim. Lock-free.
inline bool try_acquire(pinrail_registration_t* reg, uint64_t word) {
  const uint64_t generation = state::generation(word);
  while ((word & state::kIndexed) != 0 && state::generation(word) == generation) {
    if (state::references(word) >= state::kMaxReferences) return false;
    if (state::exchange(reg, &word, (word & ~state::kEvictClaim) + state::kOne)) return true;
  }
  return false;
}

// The result of dropping a reference that is counted in the state word.
enum class Drop : uint8_t {
  stale,    // other generation, or no reference was left: nothing was dropped
  done,     // dropped; other references are left
  was_last  // dropped the last reference
};

// Drops a reference of a SHARED registration; word_out: the state after the drop. A compare-and-swap rather than a
// subtraction that is repaired: when two threads spend one handle at the same time, a subtraction would show a count
// that is too low for a moment, and a reference of a third thread would be taken for none.
inline Drop drop_shared(pinrail_handle_t handle, uint64_t* word_out) {
  const auto is_held = [&](uint64_t word) {
    return state::generation(word) == handle.generation && state::references(word) != 0;
  };
  uint64_t word = state::load(handle.reg);
  do {
    if (!is_held(word)) return Drop::stale;
  } while (!state::exchange(handle.reg, &word, word - state::kOne));
  *word_out = word - state::kOne;
  return state::references(*word_out) == 0 ? Drop::was_last : Drop::done;
}

// Marks an indexed registration dead if its state is still word, of which the caller knows that it means idle. Returns
// whether it did.
inline bool claim(pinrail_registration_t* reg, uint64_t word) {
  return state::exchange(reg, &word, (word & ~(state::kIndexed | state::kEvictClaim)) | state::kDead);
}

// Marks an indexed registration dead, referenced or not. Returns whether this call did it; word_out: the state before.
inline bool kill(pinrail_registration_t* reg, uint64_t* word_out) {
  uint64_t word = state::load(reg);
  do {
    if ((word & state::kIndexed) == 0) return false;
  } while (!state::exchange(reg, &word, (word & ~(state::kIndexed | state::kEvictClaim)) | state::kDead));
  *word_out = word;
  return true;
}

// Records the epoch of the last use; stored only if it changes, so that hits in one epoch share the line.
inline void touch(pinrail_registration_t* reg, uint64_t epoch) {
  // relaxed: only the order of eviction depends on it.
  if (__atomic_load_n(&reg->last_use, __ATOMIC_RELAXED) < epoch) {
    __atomic_store_n(&reg->last_use, epoch, __ATOMIC_RELAXED);
  }
}
inline uint64_t last_use(const pinrail_registration_t* reg) {
  return __atomic_load_n(&reg->last_use, __ATOMIC_RELAXED);
}

}  // namespace pinrail

#endif
