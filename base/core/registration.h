// SPDX-License-Identifier: BSD-3-Clause
// registration.h - the state word of a registration: who may use it, and who must give it back.
//
// One 64-bit word holds references, phase and generation, so that one compare-and-swap decides every race.
//
//   bit  0      indexed    in the index: a find may take a reference
//   bit  1      dead       left the index (or was never in it): nobody new may take a reference
//   bit  2      transient  not kept without references: the last drop acts at once
//   bit  3      parked     the evictor saw it referenced and took it off the LRU list: the last drop puts it back
//   bit  4      orphan     its pool is gone, its device registration too: the last drop only frees the memory
//   bits 8-43   generation rises each time the memory serves a new registration
//   bits 44-63  references on top, so that a drop too many wraps out of the word and harms no flag
//
// S1  References are taken only while indexed is set; a registration is made with its maker's reference.
// S2  Exactly one party sees "dead and unreferenced" come true: that one gives the registration back to the device.
// S3  Registration memory is type-stable, so a stale pointer may be looked at; the generation tells that it is stale.
#ifndef PINRAIL_BASE_CORE_REGISTRATION_H
#define PINRAIL_BASE_CORE_REGISTRATION_H

#include <pinrail/types.h>

#include "base/core/span.h"

namespace pinrail {

namespace state {
constexpr uint64_t kIndexed = 1 << 0;
constexpr uint64_t kDead = 1 << 1;
constexpr uint64_t kTransient = 1 << 2;
constexpr uint64_t kParked = 1 << 3;
constexpr uint64_t kOrphan = 1 << 4;
constexpr unsigned kGenerationShift = 8;
constexpr uint64_t kGenerations = (uint64_t{1} << 36) - 1;
constexpr unsigned kReferenceShift = 44;
constexpr uint64_t kOne = uint64_t{1} << kReferenceShift;
constexpr uint64_t kReferences = ~(kOne - 1);
constexpr uint64_t kMostReferences = kReferences >> kReferenceShift;

constexpr uint64_t references(uint64_t word) { return word >> kReferenceShift; }
constexpr uint64_t generation(uint64_t word) { return (word >> kGenerationShift) & kGenerations; }
constexpr uint64_t of_generation(uint64_t generation) { return (generation & kGenerations) << kGenerationShift; }

inline uint64_t load(const pinrail_registration_t* reg) {
  // acquire: what was written before the word was published is seen; pairs with publish() and every exchange below.
  return __atomic_load_n(&reg->state, __ATOMIC_ACQUIRE);
}

// Replaces expected by desired; on failure expected becomes what is there.
inline bool exchange(pinrail_registration_t* reg, uint64_t* expected, uint64_t desired) {
  // acq_rel: a drop publishes what its holder did, and whoever acts on the last one sees it.
  return __atomic_compare_exchange_n(&reg->state, expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

inline void publish(pinrail_registration_t* reg, uint64_t word) {
  // release: the fields are filled before others can see the phase; pairs with load().
  __atomic_store_n(&reg->state, word, __ATOMIC_RELEASE);
}
}  // namespace state

inline Span span_of(const pinrail_registration_t* reg) { return Span::of(reg->base, reg->length); }
inline uint64_t generation_of(const pinrail_registration_t* reg) { return state::generation(state::load(reg)); }

// Takes a reference if the registration is indexed and still the one that word was read of.
inline bool try_acquire(pinrail_registration_t* reg, uint64_t word) {
  const uint64_t generation = state::generation(word);
  while ((word & state::kIndexed) != 0 && state::generation(word) == generation) {
    if (state::references(word) == state::kMostReferences) return false;
    if (state::exchange(reg, &word, word + state::kOne)) return true;
  }
  return false;
}

// What dropping a reference came to.
enum class Drop : uint8_t {
  stale,    // another generation, or no reference was left: nothing was dropped
  done,     // dropped; nothing else to do
  must_act  // it was the last one, and a flag asks its dropper to act: look at word_out
};

// Drops one reference. word_out: the state as the drop left it. One add, not an exchange: the look before it finds
// handles that are spent; only two threads that spend one handle at the same time get to the repair.
inline Drop drop(pinrail_handle_t handle, uint64_t* word_out) {
  constexpr uint64_t kActs = state::kDead | state::kTransient | state::kParked | state::kOrphan;
  const auto is_held = [&](uint64_t word) {
    return state::generation(word) == handle.generation && state::references(word) != 0;
  };
  if (!is_held(state::load(handle.reg))) return Drop::stale;
  // acq_rel: as in exchange().
  const uint64_t word = __atomic_fetch_sub(&handle.reg->state, state::kOne, __ATOMIC_ACQ_REL);
  if (!is_held(word)) {
    __atomic_fetch_add(&handle.reg->state, state::kOne, __ATOMIC_ACQ_REL);
    return Drop::stale;
  }
  *word_out = word - state::kOne;
  const bool acts = state::references(*word_out) == 0 && (word & kActs) != 0;
  return acts ? Drop::must_act : Drop::done;
}

// Turns an indexed, unreferenced registration of this generation dead. True for exactly one caller.
inline bool claim_idle(pinrail_registration_t* reg, uint64_t word) {
  return (word & state::kIndexed) != 0 && state::references(word) == 0 &&
         state::exchange(reg, &word, (word & ~(state::kIndexed | state::kParked)) | state::kDead);
}

// Turns an indexed registration dead, referenced or not, with these flags added. True if this call did it;
// idle_out: it had no reference, so the caller must see to it that it is given back.
inline bool kill(pinrail_registration_t* reg, uint64_t more_flags, bool* idle_out) {
  uint64_t word = state::load(reg);
  do {
    if ((word & state::kIndexed) == 0) return false;
  } while (!state::exchange(reg, &word, (word & ~state::kIndexed) | state::kDead | more_flags));
  *idle_out = state::references(word) == 0;
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
