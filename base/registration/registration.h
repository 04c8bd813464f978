// SPDX-License-Identifier: BSD-3-Clause
// registration.h - the state word of a registration: it alone decides whether a registration is valid and who ends it.
//
// One 64-bit word holds flags, generation and references, so that one compare-and-swap decides every race. Each table
// that leads to a registration is a hint: it may be stale or lossy, because a reference is only taken if the word says
// so.
//
//  bit  0      indexed     a reference may be taken
//  bit  1      dead        no reference may be taken any more, or never could be
//  bit  2      last        dead, and one thread owns the registration
//  bit  3      orphan      its pool was destroyed and the device registration with it: the last drop frees the memory
//  bit  4      transient   it ends with its last reference: persistent ones, and those that are not kept
//  bit  5      notify      the drop of the last reference tells the pool, which keeps the registration
//  bit  6      quick       the library may take and drop references without asking the pool
//  bits 8-43   generation  rises when the memory is freed
//  bits 44-63  references
//
// Threads  All functions may run together.
// Hook     All functions.
//
// registration/S1  A reference is taken only while the registration is indexed, in the exchange that counts it.
// registration/S2  The exchange that sets `dead` while there are no references, or that drops the last reference of a
//     dead or transient one, sets `last` as well. The thread that made it owns the registration alone: it takes it out
//     of the index, returns it to the device and frees it. Any other thread leaves it alone from then on, unless it
//     holds the lock of an index or list that has it. A pool that is destroyed owns what is held as well: drops only
//     count down until the device has returned it.
// registration/S3  Registration memory is type-stable, so the word may be read through a stale pointer. While the word
//     has one generation, these do not change: pool, base, length, rights, traits. What was read of them between a load
//     of the word and a take() of the same generation belongs to the registration that was taken.
// registration/S4  Every change of the word is a compare-and-swap, except by the thread that has a registration alone:
//     while it is made, and when it is freed.
#ifndef PINRAIL_BASE_REGISTRATION_REGISTRATION_H
#define PINRAIL_BASE_REGISTRATION_REGISTRATION_H

#include <pinrail/types.h>

#include "base/core/compiler.h"
#include "base/core/span.h"

namespace pinrail {

namespace state {
constexpr uint64_t kIndexed = 1 << 0;
constexpr uint64_t kDead = 1 << 1;
constexpr uint64_t kLast = 1 << 2;
constexpr uint64_t kOrphan = 1 << 3;
constexpr uint64_t kTransient = 1 << 4;
constexpr uint64_t kNotify = 1 << 5;
constexpr uint64_t kQuick = 1 << 6;
constexpr uint64_t kFlags = 0xff;
constexpr unsigned kGenerationShift = 8;
constexpr uint64_t kGenerations = (uint64_t{1} << 36) - 1;
constexpr uint64_t kGenerationMask = kGenerations << kGenerationShift;
constexpr unsigned kReferenceShift = 44;
constexpr uint64_t kOne = uint64_t{1} << kReferenceShift;
constexpr uint64_t kReferences = ~(kOne - 1);
constexpr uint64_t kMaxReferences = kReferences >> kReferenceShift;

constexpr uint64_t references(uint64_t word) { return word >> kReferenceShift; }
// The generation in place, as handles store it, so that a comparison takes one mask.
constexpr uint64_t generation(uint64_t word) { return word & kGenerationMask; }
constexpr uint64_t next_generation(uint64_t word) {
  return (word + (uint64_t{1} << kGenerationShift)) & kGenerationMask;
}

inline uint64_t load(const pinrail_registration_t* reg) {
  // acquire: pairs with publish() and with the exchanges below.
  return __atomic_load_n(&reg->state, __ATOMIC_ACQUIRE);
}

// Replaces *expected by desired. Returns false, with the current word in *expected, if the word has changed.
inline bool exchange(pinrail_registration_t* reg, uint64_t* expected, uint64_t desired) {
  // acq_rel: a drop publishes its holder's accesses to the owner of the registration (registration/S2).
  return __atomic_compare_exchange_n(&reg->state, expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

// Gives a registration that is being made its flags and one reference. It is one thread's alone (registration/S4).
// release: the fields are filled before another thread sees the flags; pairs with load().
inline void publish(pinrail_registration_t* reg, uint64_t flags) {
  const uint64_t generation = state::generation(__atomic_load_n(&reg->state, __ATOMIC_RELAXED));
  __atomic_store_n(&reg->state, generation | flags | kOne, __ATOMIC_RELEASE);
}

// From now on its pool answers each request for it, and drops each reference. The caller holds one.
// relaxed: it takes a flag away, and publishes nothing.
inline void unquicken(pinrail_registration_t* reg) { __atomic_fetch_and(&reg->state, ~kQuick, __ATOMIC_RELAXED); }

// Starts the next generation without flags, which makes all handles stale. The calling thread owns the registration.
inline void renew(pinrail_registration_t* reg) {
  // release: what was done to the old generation comes before the new one is seen; pairs with load().
  __atomic_store_n(&reg->state, next_generation(__atomic_load_n(&reg->state, __ATOMIC_RELAXED)), __ATOMIC_RELEASE);
}

// The word of a registration that leaves the index, or of a dead one, with these references: with `last` if there are
// none (registration/S2).
constexpr uint64_t dead(uint64_t word) {
  const uint64_t gone = (word & ~kIndexed) | kDead;
  return references(gone) == 0 ? gone | kLast : gone;
}
}  // namespace state

inline Span span_of(const pinrail_registration_t* reg) { return Span::of(reg->base, reg->length); }
inline uint64_t generation_of(const pinrail_registration_t* reg) { return state::generation(state::load(reg)); }
inline uint64_t references_of(const pinrail_registration_t* reg) { return state::references(state::load(reg)); }
// Whether requests find it: it was published, and neither an event nor an eviction has ended it.
inline bool is_indexed(const pinrail_registration_t* reg) { return (state::load(reg) & state::kIndexed) != 0; }

// Takes a reference of the registration, of which the caller has loaded this word. Returns false if it is not indexed,
// has another generation by now, or is full: 1,048,575 references.
inline bool take(pinrail_registration_t* reg, uint64_t word) {
  const uint64_t generation = state::generation(word);
  while ((word & state::kIndexed) != 0 && state::generation(word) == generation) {
    if (state::references(word) == state::kMaxReferences) return false;
    // acquire: the fields were filled before; pairs with state::publish(). A drop of another holder publishes nothing
    // that a new holder reads.
    if (__atomic_compare_exchange_n(&reg->state, &word, word + state::kOne, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
      return true;
  }
  return false;
}

// The same for the library's own hits, of what is quick and has this generation.
__attribute__((always_inline)) inline bool take_quick(pinrail_registration_t* reg, uint64_t generation) {
  constexpr uint64_t kWanted = state::kIndexed | state::kQuick;
  uint64_t word = __atomic_load_n(&reg->state, __ATOMIC_RELAXED);  // relaxed: the exchange decides
  do {
    if (unlikely((word & (kWanted | state::kGenerationMask)) != (kWanted | generation))) return false;
    if (unlikely(state::references(word) == state::kMaxReferences)) return false;
    // acquire: as in take().
  } while (unlikely(
      !__atomic_compare_exchange_n(&reg->state, &word, word + state::kOne, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)));
  return true;
}

// What dropping a reference came to.
enum class Drop : uint8_t {
  stale,  // other generation, or no reference was left: nothing was dropped
  done,   // dropped
  idle,   // dropped the last reference of one whose pool wants to know
  last    // dropped, and the calling thread owns the registration now (registration/S2)
};

// Drops a reference, by an exchange and not by a subtraction that is repaired: two threads that spend one handle never
// take away the reference of a third one.
inline Drop drop(pinrail_handle_t handle) {
  uint64_t word = state::load(handle.reg), next;
  do {
    if (state::generation(word) != handle.generation || state::references(word) == 0) return Drop::stale;
    next = word - state::kOne;
    const bool ends = state::references(next) == 0 && (next & (state::kDead | state::kTransient)) != 0;
    if (ends) next = state::dead(next);
  } while (!state::exchange(handle.reg, &word, next));
  if ((word & state::kLast) != 0) return Drop::done;
  if ((next & state::kLast) != 0) return Drop::last;
  return state::references(next) == 0 && (next & state::kNotify) != 0 ? Drop::idle : Drop::done;
}

// Drops a reference of what is quick, if that comes to Drop::done. Returns false, with nothing changed, otherwise.
__attribute__((always_inline)) inline bool drop_quick(pinrail_handle_t handle) {
  constexpr uint64_t kToTell = state::kDead | state::kTransient | state::kNotify;
  uint64_t word = __atomic_load_n(&handle.reg->state, __ATOMIC_RELAXED);  // relaxed: the exchange decides
  do {
    if (unlikely((word & (state::kQuick | state::kGenerationMask)) != (state::kQuick | handle.generation)))
      return false;
    if (unlikely(word < 2 * state::kOne) && unlikely(word < state::kOne || (word & kToTell) != 0)) return false;
    // release: publishes the holder's accesses to the thread that ends the registration; pairs with state::exchange().
  } while (unlikely(!__atomic_compare_exchange_n(&handle.reg->state, &word, word - state::kOne, true, __ATOMIC_RELEASE,
                                                 __ATOMIC_RELAXED)));
  return true;
}

// Makes an indexed registration dead if its word is still this one, without references. Returns whether it did: then
// the caller owns it.
inline bool retire(pinrail_registration_t* reg, uint64_t word) {
  if ((word & state::kIndexed) == 0 || state::references(word) != 0) return false;
  return state::exchange(reg, &word, state::dead(word));
}

// What making a registration dead came to.
enum class Killed : uint8_t {
  no,    // it was not indexed
  held,  // it is referenced: its last drop ends it
  owned  // it is unreferenced, and the calling thread owns it now
};

// Makes an indexed registration dead, referenced or not.
inline Killed kill(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  do {
    if ((word & state::kIndexed) == 0) return Killed::no;
  } while (!state::exchange(reg, &word, state::dead(word)));
  return state::references(word) == 0 ? Killed::owned : Killed::held;
}

// For a pool that is destroyed: makes the registration dead, indexed or not, held or not, and the calling thread its
// owner. False: another thread owns it.
inline bool seize(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  do {
    if ((word & state::kLast) != 0) return false;
  } while (!state::exchange(reg, &word, (word & ~(state::kIndexed | state::kQuick)) | state::kDead | state::kLast));
  return true;
}

// The owner lets go of what the device has returned. True: nothing refers to it, and the owner frees it. False: it is
// an orphan, which its last drop frees.
inline bool disown(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  do {
    if (state::references(word) == 0) return true;
  } while (!state::exchange(reg, &word, (word & ~state::kLast) | state::kOrphan));
  return false;
}

// pinrail_registration_t::used of what was hit since the evictor last passed by; otherwise the chances that are left,
// up to kMostChances. The owner of a dead one may keep another number there, which is none of these.
inline constexpr uint32_t kHit = UINT32_MAX, kMostChances = 4;

// Notes a hit for the evictor. relaxed: only the order of eviction depends on it. Stored only if it changes; the line
// is the thread's own, because it has taken a reference.
__attribute__((always_inline)) inline void mark_used(pinrail_registration_t* reg) {
  if (__atomic_load_n(&reg->used, __ATOMIC_RELAXED) != kHit) __atomic_store_n(&reg->used, kHit, __ATOMIC_RELAXED);
}
// Takes a chance away, and returns whether there was one. A hit has given it so many: chances, 1 to kMostChances. By an
// exchange, because the registration may be dead by now, and the word its owner's.
inline bool take_chance(pinrail_registration_t* reg, uint32_t chances) {
  uint32_t used = __atomic_load_n(&reg->used, __ATOMIC_RELAXED);
  if (used == 0 || (used > kMostChances && used != kHit)) return false;
  __atomic_compare_exchange_n(&reg->used, &used, (used == kHit ? chances : used) - 1, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  return true;
}

// Fills in what a registration is of. Relaxed atomics, because a stale hint may be compared with it meanwhile
// (registration/S3).
inline void set_range(pinrail_registration_t* reg, const Span& span, pinrail_mpool_t* pool, uint32_t traits) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as the caller gave it
  __atomic_store_n(&reg->base, reinterpret_cast<void*>(span.base), __ATOMIC_RELAXED);
  __atomic_store_n(&reg->length, span.length(), __ATOMIC_RELAXED);
  __atomic_store_n(&reg->traits, traits, __ATOMIC_RELAXED);
  __atomic_store_n(&reg->pool, pool, __ATOMIC_RELAXED);
}

}  // namespace pinrail

#endif
