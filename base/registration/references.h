// SPDX-License-Identifier: BSD-3-Clause
// references.h - how the references of a registration are counted and summed.
//
// Two ways of counting exist. A registration keeps the way that it was allocated with.
//  SHARED     One atomic count in the state word (registration.h). The thread that drops the last reference sees that.
//  THREADS    Each thread has a table of reference slots. A slot holds a registration and a signed count; only its own
//             thread writes it, with plain stores. The references of a registration are the sum of its own count (one
//             atomic word, registration_arena.h) and of all slots that name it.
//
// A slot's count may be negative, because a reference may be dropped on another thread than the one that took it. The
// sum is computed only when it is needed: to evict, to deregister a dead registration, to destroy a pool. Each thread
// has two slots for a registration: the near slot, in a table small enough for the first-level cache and shared by
// several registrations, and the far slot, which is used while the near slot counts another registration. If both slots
// count other registrations, the own count is used.
//
// Protocol of a sum. First the registration is made untakeable: it is claimed by an evictor, or dead.
//  take   slot + 1; then load the state. If it is claimed or dead: slot - 1, and take the slow path.
//  drop   slot - 1; then load the state. If it is dead: notify the gc.
//  sum    set the state; membarrier; add up. After the barrier each thread's count is either visible to the sum, or
//         that thread sees the new state.
// The compiler barrier between the slot and the state pairs with this membarrier. If the kernel refuses membarrier at
// start-up, threads get no slots: they share one read-only table whose slots are all in use, so that the own counts are
// used. If membarrier fails later, nothing is concluded: each registration that is counted per thread counts as held
// (kUnknown), and pools allocate SHARED registrations from then on.
//
// Counts do not wrap. A slot that reaches kMaxCount is folded: its count moves into the own count. The own count has 64
// bits, and each take or drop changes it by 1 at most.
//
// references/C1  After a registration became untakeable its count only falls, except for speculative takes, which are
//     rolled back in the same slot. So a sum of 0 is final. A sum above 0 may include speculative takes; `rollbacks`
//     rises when these are rolled back.
// references/C2  A slot with a count other than 0 keeps its registration; only a slot with count 0 is reused for
//     another one. Memory that served a THREADS registration serves only such registrations, because its slots may
//     cancel out without each being 0.
// references/C3  Slots are folded only under the lock that sums (LockRank::threads): the slots of an ending thread, and
//     a slot that reached kMaxCount.
// references/C4  The five words behind a near slot belong to base/hit/note.h. Counting in the slot makes them invalid.
// references/C5  A dead registration that was summed after a membarrier and is still held may be marked as summed. From
//     then on the slots' part of its sum is kept in the first word of the pool's area, and drops go to the own count
//     under the lock that sums, so that the last drop is known without another sum. A drop or a rollback that did not
//     see the mark in time still changed a slot. It is found by summing again: the drop does so itself; for a rollback,
//     the caller that sees a higher `rollbacks` does. Until then the kept part is too high, never too low.
#ifndef PINRAIL_BASE_REGISTRATION_REFERENCES_H
#define PINRAIL_BASE_REGISTRATION_REFERENCES_H

#include <pinrail/component_rcache.h>

#include <atomic>
#include <initializer_list>

#include "base/lru/epoch.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/registration/shortcut.h"

namespace pinrail::references {

constexpr unsigned kNearBits = 6;
constexpr size_t kNearSlots =
    size_t{1} << kNearBits;  // slots in the near table; small enough for the first-level cache
constexpr unsigned kFarBits = 10;
constexpr size_t kFarSlots = size_t{1} << kFarBits;             // slots in the far table
constexpr size_t kNearWords = 8;                                // one cache line: a near slot and its note (note/N1)
constexpr size_t kWords = kNearWords * kNearSlots + kFarSlots;  // 12 KiB per thread
constexpr int kMaxCount = 30000;                                // largest absolute count of a slot; then it is folded
constexpr uint64_t kUnusableRefSlot =
    ~uint64_t{0xffff} + 1;  // a slot that is in use for no registration, so it never counts one

// A reference slot: the registration's address in the upper 48 bits, the signed count in the low 16.
inline uint64_t tag_of(const pinrail_registration_t* reg) { return reinterpret_cast<uintptr_t>(reg) << 16; }
constexpr int16_t count_of(uint64_t ref_slot) { return static_cast<int16_t>(ref_slot & 0xffff); }
inline bool names(uint64_t ref_slot, const pinrail_registration_t* reg) {
  return ((ref_slot ^ tag_of(reg)) >> 16) == 0;
}

// Spreads registrations of a slab over the slots. Neighbours in a row of up to kNearSlots - 1 use different near slots,
// wherever the row begins: each following block of kNearSlots lines begins one slot later. If only every second line
// has a registration, because they have tails, a block uses the even slots and the next one the odd slots. The low bits
// of an address are 0, so that nothing is carried into the line's index.
constexpr uintptr_t spread(uintptr_t address) { return address + (address >> kNearBits); }
// Index of the near and of the far slot in pinrail_thread_t::ref_slots, in words. One line of near slots stands for one
// line of registrations, so that the hit path only masks address bits.
constexpr size_t kLine = kNearWords * sizeof(uint64_t);
inline size_t near_of(const pinrail_registration_t* reg) {
  static_assert(kLine == sizeof(pinrail_registration_t), "they are counted alike");
  return (spread(reinterpret_cast<uintptr_t>(reg)) & (kLine * (kNearSlots - 1))) / sizeof(uint64_t);
}
inline size_t far_of(const pinrail_registration_t* reg) {
  return kNearWords * kNearSlots + (spread(reinterpret_cast<uintptr_t>(reg)) / kLine & (kFarSlots - 1));
}
// Distance from the slot at this index to the next one, in words.
constexpr size_t words_of_ref_slot(size_t place) { return place < kNearWords * kNearSlots ? kNearWords : 1; }

inline uint64_t* near_ref_slot(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return &thread->ref_slots[near_of(reg)];
}
inline uint64_t* far_ref_slot(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return &thread->ref_slots[far_of(reg)];
}
inline uint64_t load_slot(const uint64_t* ref_slot) {
  return __atomic_load_n(ref_slot, __ATOMIC_RELAXED);  // relaxed: only the calling thread writes it
}

inline void store_slot(uint64_t* ref_slot, uint64_t word) {
  // release: the holder's accesses happen before a sum that finds 0; pairs with the acquire load in thread.cc,
  // count_of().
  __atomic_store_n(ref_slot, word, __ATOMIC_RELEASE);
  // Compiler barrier: the caller loads the state after this store. Pairs with the membarrier of sum().
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Invalidates the note behind a near slot (base/hit/note.h): no registration has that generation. relaxed: only the
// owning thread writes anything else there.
constexpr uint64_t kNoGeneration = ~uint64_t{0};
inline void clear_note(uint64_t* near) { __atomic_store_n(&near[2], kNoGeneration, __ATOMIC_RELAXED); }

// Adds step to the slot's count. Returns false, and changes nothing, if the slot counts another registration or would
// exceed kMaxCount. Calling thread's slots only; so are all functions below that take a thread or a slot.
inline bool count_in(uint64_t* ref_slot, const pinrail_registration_t* reg, int step) {
  const uint64_t word = load_slot(ref_slot);
  const int now = count_of(word);
  if (!names(word, reg) && now != 0) return false;
  const int next = now + step;
  if (next > kMaxCount || next < -kMaxCount) return false;
  store_slot(ref_slot, tag_of(reg) | static_cast<uint16_t>(next));
  return true;
}

// The own count: the part of the sum that is in no slot. Any thread.
inline int64_t add_own(const pinrail_registration_t* reg, int64_t more) {
  // seq_cst: a take loads the state after this; a drop publishes its holder's accesses, as store_slot() does.
  return __atomic_add_fetch(arena::own_count(reg), more, __ATOMIC_SEQ_CST);
}
inline int64_t own_count(const pinrail_registration_t* reg) {
  return __atomic_load_n(arena::own_count(reg), __ATOMIC_SEQ_CST);
}

// Slow path of count(): folds a full slot of this registration and tries again. Takes the lock that sums.
__attribute__((noinline, cold)) inline bool count_after_fold(const pinrail_thread_t* thread,
                                                             const pinrail_registration_t* reg, int step) {
  const auto is_full = [&](const uint64_t* ref_slot) {
    return names(load_slot(ref_slot), reg) && count_of(load_slot(ref_slot)) != 0;
  };
  if (!is_full(near_ref_slot(thread, reg)) && !is_full(far_ref_slot(thread, reg))) return false;
  thread->fold(thread, reg);
  return count_in(near_ref_slot(thread, reg), reg, step) || count_in(far_ref_slot(thread, reg), reg, step);
}

// Adds step (+1 or -1) in the near or the far slot and invalidates the note. Returns false if neither slot can count
// this registration now; then nothing changed. A count of +1 is undone in the same slot (references/C1). Lock-free, but
// for a full slot, which is folded under the lock that sums.
inline bool count(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  uint64_t* near = near_ref_slot(thread, reg);
  if (!count_in(near, reg, step)) {
    return count_in(far_ref_slot(thread, reg), reg, step) || count_after_fold(thread, reg, step);
  }
  clear_note(near);
  return true;
}

// Adds step in a slot, or else in the own count. Never fails.
inline void count_surely(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  if (!count(thread, reg, step)) add_own(reg, step);
}

// Fast path for the first reference: counts +1 in the near slot if that slot is empty, else returns false and changes
// nothing. Leaves the old note in place; the caller overwrites it.
inline bool count_first(uint64_t* near, const pinrail_registration_t* reg) {
  if (count_of(load_slot(near)) != 0) return false;
  store_slot(near, tag_of(reg) + 1);
  return true;
}

// Returns whether this slot value has a positive count of the registration, that is a reference that the slot's own
// thread may drop in it.
inline bool has_some(uint64_t ref_slot, const pinrail_registration_t* reg) {
  return (ref_slot ^ tag_of(reg)) - 1 < kMaxCount;  // otherwise it names another registration, or its count is below 1
}

// Drops a reference in this slot. Returns false, and changes nothing, if the slot has none of the registration.
inline bool drop_in(uint64_t* ref_slot, const pinrail_registration_t* reg) {
  const uint64_t word = load_slot(ref_slot);
  if (!has_some(word, reg)) return false;
  store_slot(ref_slot, word - 1);
  return true;
}

// Drops a reference that the calling thread took and counts in a slot. Returns false, and changes nothing, if it has
// none. The caller must load the state afterwards (drop, above).
inline bool drop_own(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return drop_in(near_ref_slot(thread, reg), reg) || drop_in(far_ref_slot(thread, reg), reg);
}

// As drop_own(), and records the use. The timestamp is written first, because after the drop the registration may be
// reused.
inline bool drop_dated(const pinrail_thread_t* thread, pinrail_registration_t* reg, const uint64_t* epoch) {
  touch(reg, epoch::load(epoch));
  return drop_own(thread, reg);
}

// Returns whether a slot of the calling thread has a count other than 0 of the registration.
inline bool has_count(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  // With its tag taken off, a slot of this registration is its count, in 16 bits.
  const auto counts = [&](uint64_t word) { return (word ^ tag_of(reg)) - 1 < 0xffff; };
  return counts(load_slot(near_ref_slot(thread, reg))) || counts(load_slot(far_ref_slot(thread, reg)));
}

// Rolls back a speculative count of +1: in a slot, or in the own count. A concurrent sum may have included it; its
// caller sums again when `rollbacks` has risen.
__attribute__((noinline, cold)) inline void roll_back(const pinrail_thread_t* thread,
                                                      const pinrail_registration_t* reg) {
  count(thread, reg, -1);
  __atomic_fetch_add(thread->rollbacks, 1,
                     __ATOMIC_SEQ_CST);  // after the slot; pairs with the load before a sum
}
__attribute__((noinline, cold)) inline void roll_back_own(const pinrail_thread_t* thread,
                                                          const pinrail_registration_t* reg) {
  add_own(reg, -1);
  __atomic_fetch_add(thread->rollbacks, 1, __ATOMIC_SEQ_CST);  // as above
}

// The bits of the state word that must be unchanged after the count for a take to succeed.
constexpr uint64_t kTakeMask = state::kIndexed | state::kEvictClaim | state::kGenerationMask;

// Takes a reference in the own count. Returns false, with the count rolled back, if the registration has left the index
// or has another generation than word. Revokes an evictor's claim. Lock-free.
__attribute__((noinline, cold)) inline bool take_own(const pinrail_thread_t* thread, pinrail_registration_t* reg,
                                                     uint64_t word) {
  const uint64_t generation = state::generation(word);
  add_own(reg, 1);
  word = state::load_after_count(reg);
  while ((word & state::kIndexed) != 0 && state::generation(word) == generation) {
    if ((word & state::kEvictClaim) == 0 || state::exchange(reg, &word, word & ~state::kEvictClaim)) return true;
  }
  roll_back_own(thread, reg);
  return false;
}

// Takes a reference of the registration whose state was word when the caller found it. Returns false, with nothing
// counted, if word or the current state is claimed, not indexed, or of another generation. Lock-free.
inline bool take(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  constexpr uint64_t kUsual = state::kIndexed | state::kPerThread;
  if ((word & (state::kIndexed | state::kEvictClaim)) != state::kIndexed) return false;
  if ((word & kUsual) != kUsual) return try_acquire(reg, word);
  if (!count(thread, reg, 1)) return take_own(thread, reg, word);
  if (((state::load(reg) ^ word) & kTakeMask) == 0) return true;
  roll_back(thread, reg);
  return false;
}

// As take(), but revokes an evictor's claim instead of failing on it. The caller holds the index lock and, if this
// revoked a claim, makes the entry visible to lock-free readers again.
inline bool take_revoking_claim(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  return (word & state::kPerThread) != 0 ? take_own(thread, reg, word) : try_acquire(reg, word);
}

// Takes a reference of whatever registration this memory holds now. The memory is counted per thread for ever
// (registration_arena/A3), so counting is harmless. Returns true if it is indexed and not claimed; from then on it
// cannot be reused. Returns false, with nothing counted, otherwise, or if the thread has no free slot. Lock-free.
inline bool hold(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!count(thread, reg, 1)) return false;
  if ((state::load(reg) & (state::kIndexed | state::kEvictClaim)) == state::kIndexed) return true;
  roll_back(thread, reg);
  return false;
}

// Drops a reference of a THREADS registration, wherever it was taken, and returns the state loaded afterwards. The
// caller must act on a dead state.
inline uint64_t drop_counted(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  count_surely(thread, reg, -1);
  return state::load_after_count(reg);
}

// A final sum below 0 means that a caller dropped more references than it took. Raises the own count to 0, so that the
// next registration in this memory starts at 0. The caller knows that the sum is final (references/C1).
inline void discard_excess_drops(pinrail_registration_t* reg, int64_t sum) {
  if (sum < 0) add_own(reg, -sum);
}

// For a pool that is destroyed: whether a dead registration is referenced, of which the references sum to that. One
// that was summed before is claimed if it is not: otherwise a thread that ends before it is freed would change the kept
// part (references/C5) of memory that serves another registration by then. Takes the lock that sums.
inline bool is_held_at_destroy(const pinrail_host_t* host, pinrail_registration_t* reg, int64_t sum) {
  const uint64_t word = state::load(reg);
  const bool is_kept = (word & state::kSummed) != 0 || sum > 0;
  if ((word & state::kPerThread) != 0 && is_kept) {
    return host->registrations->settle_dead(host, {reg, state::generation(word)}, PINRAIL_DEAD_HELD) != 1;
  }
  discard_excess_drops(reg, sum);
  return sum > 0;
}

// Before a registration's memory is freed (arena::free): moves what the calling thread's slots count into the own
// count. Takes the lock that sums if there is anything.
inline void fold_own(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (has_count(thread, reg)) thread->fold(thread, reg);
}

// Revokes an evictor's claim. Returns false if there was none.
inline bool revoke_claim(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  while ((word & state::kEvictClaim) != 0) {
    if (state::exchange(reg, &word, word & ~state::kEvictClaim)) return true;
  }
  return false;
}

// As discard_excess_drops(), if the claim still holds; returns whether it does. Without the claim the sum is not final:
// it may have seen a drop without the take that came before it.
inline bool discard_excess_drops_if_claimed(pinrail_registration_t* reg, int64_t sum) {
  if ((state::load(reg) & state::kEvictClaim) == 0) return false;
  discard_excess_drops(reg, sum);
  return true;
}

// Host service forget_notes: clears all threads' notes and recent requests that point into the table. Takes the lock
// that sums.
void forget_notes(const pinrail_start_table_t& table);

// references/C5. The caller holds the lock that sums.
inline bool is_summed(uint64_t word) { return (word & (state::kSummed | state::kReleaseClaim)) == state::kSummed; }
inline int64_t& kept_part(const pinrail_registration_t* reg) { return *static_cast<int64_t*>(arena::area_of(reg)); }

// The result of a sum whose barrier failed: the registration counts as held.
constexpr int64_t kUnknown = PINRAIL_REFERENCES_UNKNOWN;

// Host services count_references, settle_dead and counts_per_thread; see component_mpool.h. All three take the lock
// that sums, except can_sum(). sum() returns false if the barrier failed.
bool sum(pinrail_registration_t* const* regs, size_t count, pinrail_sum_t mode, int64_t* references_out);
int settle_dead(pinrail_handle_t handle, pinrail_dead_t what);
bool can_sum();

}  // namespace pinrail::references

#endif
