// SPDX-License-Identifier: BSD-3-Clause
// registration.h - the state word of a registration: who may use it, and who must give it back.
//
// One 64-bit word holds references, phase and generation, so that one compare-and-swap decides every race.
//
//   bit  0      indexed    in the index: a find may take a reference
//   bit  1      dead       left the index (or was never in it): nobody new may take a reference
//   bit  2      per thread references are counted per thread (references.h); else here, and the last drop acts
//   bit  3      claimed     indexed, but an evictor wants to know whether it is idle: the next hit must break the
//   claim;
//                          with "dead": nobody did, and it was evicted
//   bit  4      orphan     its pool is gone, its device registration too: drops only count down
//   bit  5      claimed    dead, and one party is giving it back: for pools in which several may find that out
//   bit  6      summed     dead, counted per thread, and held when it was summed: references/C5
//   bits 8-43   generation rises each time the memory serves a new registration, and when it is freed
//   bits 44-63  references of a registration that is not counted per thread; at most half of what there is room for
//
// registration/S1  References are taken only while indexed and not claimed, or by breaking the claim in one exchange.
// registration/S2  Exactly one party sees "dead and unreferenced" come true: that one gives the registration back to
//     the device.
// registration/S3  Registration memory is type-stable, so a stale pointer may be looked at; the generation tells that
//     it is stale.
// registration/S4  Every change of the word is an exchange, or sets bits: the references survive it.
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
// As handles have it: where it stands in the word, so that comparing takes one mask.
constexpr uint64_t generation(uint64_t word) { return word & kGenerationMask; }
constexpr uint64_t next_generation(uint64_t word) {
  return (word + (uint64_t{1} << kGenerationShift)) & kGenerationMask;
}

inline uint64_t load(const pinrail_registration_t* reg) {
  // acquire: what was written before the word was published is seen; pairs with publish() and every exchange below.
  return __atomic_load_n(&reg->state, __ATOMIC_ACQUIRE);
}

// The same, after a reference was counted in the own count (references.h). seq_cst, as that is: pairs with exchange(),
// by which a registration is claimed or killed before its own count is looked at.
inline uint64_t load_after_count(const pinrail_registration_t* reg) {
  return __atomic_load_n(&reg->state, __ATOMIC_SEQ_CST);
}

// Replaces expected by desired; on failure expected becomes what is there.
inline bool exchange(pinrail_registration_t* reg, uint64_t* expected, uint64_t desired) {
  // seq_cst: a drop publishes what its holder did, and whoever acts on the last one sees it; and load_after_count().
  return __atomic_compare_exchange_n(&reg->state, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

// Replaces the flags and adds references; the rest stays. Release: the fields are filled before others see the phase.
inline uint64_t set(pinrail_registration_t* reg, uint64_t flags, int references_more = 0) {
  uint64_t word = load(reg);
  uint64_t next;
  do {
    next = ((word & ~kFlags) | flags) + static_cast<uint64_t>(references_more) * kOne;
  } while (!exchange(reg, &word, next));
  return next;
}

// The next generation, without flags: handles are stale from this moment. How references are counted stays (C2 of
// references.h).
inline void renew(pinrail_registration_t* reg) {
  uint64_t word = load(reg);
  while (!exchange(reg, &word, (word & kPerThread) | next_generation(word))) {
  }
}
}  // namespace state

inline Span span_of(const pinrail_registration_t* reg) { return Span::of(reg->base, reg->length); }
inline uint64_t generation_of(const pinrail_registration_t* reg) { return state::generation(state::load(reg)); }

// Takes a reference in the word of one that is counted there, if it is indexed and still the one that word was read of.
// Breaks a claim.
inline bool try_acquire(pinrail_registration_t* reg, uint64_t word) {
  const uint64_t generation = state::generation(word);
  while ((word & state::kIndexed) != 0 && state::generation(word) == generation) {
    if (state::references(word) >= state::kMaxReferences) return false;
    if (state::exchange(reg, &word, (word & ~state::kEvictClaim) + state::kOne)) return true;
  }
  return false;
}

// What dropping a reference that is counted in the word came to.
enum class Drop : uint8_t {
  stale,    // another generation, or no reference was left: nothing was dropped
  done,     // dropped; others are left
  was_last  // dropped, and it was the last one
};

// word_out: the state as the drop left it. An exchange, not an add that is repaired: two threads that spend one handle
// at the same time would show a count that is too low meanwhile, and a hit of a third one would be taken for idle.
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

// Turns an indexed registration dead if its word is still this one: for who knows that word to mean "idle".
inline bool claim(pinrail_registration_t* reg, uint64_t word) {
  return state::exchange(reg, &word, (word & ~(state::kIndexed | state::kEvictClaim)) | state::kDead);
}

// Turns an indexed registration dead, referenced or not. True if this call did it; word_out: the state before.
inline bool kill(pinrail_registration_t* reg, uint64_t* word_out) {
  uint64_t word = state::load(reg);
  do {
    if ((word & state::kIndexed) == 0) return false;
  } while (!state::exchange(reg, &word, (word & ~(state::kIndexed | state::kEvictClaim)) | state::kDead));
  *word_out = word;
  return true;
}

// The epoch of the last use; written only when it changes, so that hits in one epoch share the line.
inline void touch(pinrail_registration_t* reg, uint64_t epoch) {
  // relaxed: only the order of eviction hangs on it.
  if (__atomic_load_n(&reg->last_use, __ATOMIC_RELAXED) < epoch) {
    __atomic_store_n(&reg->last_use, epoch, __ATOMIC_RELAXED);
  }
}
inline uint64_t last_use(const pinrail_registration_t* reg) {
  return __atomic_load_n(&reg->last_use, __ATOMIC_RELAXED);
}

}  // namespace pinrail

#endif
