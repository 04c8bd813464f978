// SPDX-License-Identifier: BSD-3-Clause
// references.h - who holds a registration? Counted in its state word, or per thread.
//
// SHARED: one atomic count in the state word. The last drop is seen by who makes it.
// THREADS: each thread has a small table of reference slots, (registration, signed count), that it alone writes, with
// plain stores. The references of a registration are its own count (registration_arena.h), an atomic word, plus all
// reference slots that name it; each of them may be negative, for a reference may be dropped on another thread than
// took it. Nobody knows the sum until somebody must: to evict, to give back what is dead, to destroy. Each thread has
// two reference slots for a registration: the near one, of a few that many share and that lie close together; and the
// far one for when that counts another registration. Where both count others, the own count counts.
//
// How the sum is learned: make the registration untakeable first (claimed or dead), then one membarrier, then add up.
//   taking    reference slot + 1, then look at the state: claimed or dead -> reference slot - 1 and go the slow way.
//   dropping  reference slot - 1, then look at the state: dead -> tell the gc.
//   summing   set the state, membarrier (every thread is now either seen by the sum, or will see the state), add up.
// The compiler barrier between reference slot and state pairs with that membarrier; where the kernel refuses it from
// the beginning, threads have no reference slots, that is all have the same full ones of nobody, and the own counts
// count everything. Where it fails later, nothing is concluded: what cannot be summed is held (kUnknown), and the pools
// make no more registrations that are counted per thread.
//
// No count wraps. A reference slot that has counted kMaxCount is folded: added to the own count, and 0 then. The own
// count has 64 bits, and each reference that is taken or dropped moves it by 1 at most, be it late: to wrap it takes
// 2^63 of them.
//
// references/C1  Once a registration is untakeable its counts only fall, but for takings that fail and are rolled back
// in
//     their own reference slot, so a sum of 0 is true and stays true. A sum above 0 may be of one that will be rolled
//     back: rollbacks rises then.
// references/C2  A reference slot that counts something keeps its registration; only a reference slot of 0 is given to
// another. Memory of a
//     registration that was counted per thread serves only such registrations again, for its reference slots may cancel
//     out without being 0 each.
// references/C3  Reference slots are folded under the lock that sums: that of a thread that ends, that of one that has
// counted
//     kMaxCount.
// references/C4  The five words behind a near reference slot belong to base/hit/note.h. Counting in the slot clears the
//     first of them.
// references/C5  What is dead, was summed after a membarrier, and is held, may be marked as summed: then the reference
// slots'
//     part of the
// sum
//     is kept in the first word of the pool's area, and from then on references are dropped in the own count, under the
//     lock that sums, so that the last one is known without a sum. A reference slot that a drop or an undo touched, for
//     it did not see the mark in time, is found by adding up again: by the drop itself; for an undo, by who sees that
//     `rollbacks` has risen. Until then the kept part is too high, never too low.
#ifndef PINRAIL_BASE_REGISTRATION_REFERENCES_H
#define PINRAIL_BASE_REGISTRATION_REFERENCES_H

#include <pinrail/component.h>

#include <atomic>
#include <initializer_list>

#include "base/lru/epoch.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::references {

constexpr unsigned kNearBits = 6;
constexpr size_t kNearSlots =
    size_t{1} << kNearBits;  // reference slots at hand; so few that hits find them in the cache
constexpr unsigned kFarBits = 10;
constexpr size_t kFarSlots = size_t{1} << kFarBits;  // reference slots of what finds its near one taken
constexpr size_t kNearWords = 8;  // a line: a near reference slot, and behind it what its thread alone reads: note/N1
constexpr size_t kWords = kNearWords * kNearSlots + kFarSlots;  // 12 KiB per thread
constexpr int kMaxCount = 30000;  // of one reference slot, above or below 0; then it is folded
constexpr uint64_t kUnusableRefSlot =
    ~uint64_t{0xffff} + 1;  // a reference slot that counts one reference to no registration

// A reference slot: the registration's address above, the count in the low 16 bits.
inline uint64_t tag_of(const pinrail_registration_t* reg) { return reinterpret_cast<uintptr_t>(reg) << 16; }
constexpr int16_t count_of(uint64_t ref_slot) { return static_cast<int16_t>(ref_slot & 0xffff); }
inline bool names(uint64_t ref_slot, const pinrail_registration_t* reg) {
  return ((ref_slot ^ tag_of(reg)) >> 16) == 0;
}

// Neighbours in a slab, which lie one or some more lines apart, have reference slots of their own: as many in a row as
// there are reference slots share none. (From x and x/2 together all bits of x can be told.)
constexpr uintptr_t spread(uintptr_t address) { return address ^ address >> 1; }
// The words at which its reference slots stand. A line of near reference slots for a line of registrations: so hits
// need but mask the bits.
constexpr size_t kLine = kNearWords * sizeof(uint64_t);
inline size_t near_of(const pinrail_registration_t* reg) {
  static_assert(kLine == sizeof(pinrail_registration_t), "they are counted alike");
  return (spread(reinterpret_cast<uintptr_t>(reg)) & (kLine * (kNearSlots - 1))) / sizeof(uint64_t);
}
inline size_t far_of(const pinrail_registration_t* reg) {
  return kNearWords * kNearSlots + (spread(reinterpret_cast<uintptr_t>(reg)) / kLine & (kFarSlots - 1));
}
// From a reference slot to the next one.
constexpr size_t words_of_ref_slot(size_t place) { return place < kNearWords * kNearSlots ? kNearWords : 1; }

inline uint64_t* near_ref_slot(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return &thread->ref_slots[near_of(reg)];
}
inline uint64_t* far_ref_slot(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return &thread->ref_slots[far_of(reg)];
}
inline uint64_t load_slot(const uint64_t* ref_slot) {
  return __atomic_load_n(ref_slot, __ATOMIC_RELAXED);  // relaxed: this thread alone writes it
}

inline void store_slot(uint64_t* ref_slot, uint64_t word) {
  // release: what the holder did is seen by who finds the sum 0; pairs with the acquire load in sum().
  __atomic_store_n(ref_slot, word, __ATOMIC_RELEASE);
  // Compiler barrier: the state is looked at after this. Pairs with the membarrier of sum().
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// relaxed: only the owning thread writes anything else there.
inline void clear_note(uint64_t* near) { __atomic_store_n(&near[1], 0, __ATOMIC_RELAXED); }

// Counts in that reference slot, unless it counts another one or too many.
inline bool count_in(uint64_t* ref_slot, const pinrail_registration_t* reg, int step) {
  const uint64_t word = load_slot(ref_slot);
  const int now = count_of(word);
  if (!names(word, reg) && now != 0) return false;
  const int next = now + step;
  if (next > kMaxCount || next < -kMaxCount) return false;
  store_slot(ref_slot, tag_of(reg) | static_cast<uint16_t>(next));
  return true;
}

// The part of the sum that no reference slot counts.
inline int64_t add_own(const pinrail_registration_t* reg, int64_t more) {
  // seq_cst: a taking looks at the state after this; a drop publishes what its holder did, as store_slot() does.
  return __atomic_add_fetch(arena::own_count(reg), more, __ATOMIC_SEQ_CST);
}
inline int64_t own_count(const pinrail_registration_t* reg) {
  return __atomic_load_n(arena::own_count(reg), __ATOMIC_SEQ_CST);
}

// As count(), where the first try failed: a reference slot that is full is folded first.
__attribute__((noinline, cold)) inline bool count_after_fold(const pinrail_thread_t* thread,
                                                             const pinrail_registration_t* reg, int step) {
  const auto is_full = [&](const uint64_t* ref_slot) {
    return names(load_slot(ref_slot), reg) && count_of(load_slot(ref_slot)) != 0;
  };
  if (!is_full(near_ref_slot(thread, reg)) && !is_full(far_ref_slot(thread, reg))) return false;
  thread->fold(thread, reg);
  return count_in(near_ref_slot(thread, reg), reg, step) || count_in(far_ref_slot(thread, reg), reg, step);
}

// Counts in a reference slot of the calling thread, and what was noted there is forgotten. False if it has none for
// this registration now: then nothing happened. What was just counted is taken back in the same reference slot
// (references/C1).
inline bool count(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  uint64_t* near = near_ref_slot(thread, reg);
  if (!count_in(near, reg, step)) {
    return count_in(far_ref_slot(thread, reg), reg, step) || count_after_fold(thread, reg, step);
  }
  clear_note(near);
  return true;
}

// Counts in a reference slot, or else in the own count.
inline void count_surely(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  if (!count(thread, reg, step)) add_own(reg, step);
}

// The same for the first one, in few steps: false if the near reference slot counts anything. What is noted there is of
// another one still.
inline bool count_first(uint64_t* near, const pinrail_registration_t* reg) {
  if (count_of(load_slot(near)) != 0) return false;
  store_slot(near, tag_of(reg) + 1);
  return true;
}

// The same for one more, if the near reference slot names it already, and what is noted stays; else nothing happens.
inline bool count_again(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  uint64_t* near = near_ref_slot(thread, reg);
  const uint64_t word = load_slot(near);
  if ((word ^ tag_of(reg)) >= kMaxCount) return false;
  store_slot(near, word + 1);
  return true;
}

// Whether the reference slot has references of the registration that its own thread can drop.
inline bool has_some(uint64_t ref_slot, const pinrail_registration_t* reg) {
  return (ref_slot ^ tag_of(reg)) - 1 < kMaxCount;  // else it names another, or counts less than 1
}

// Drops a reference that the reference slot has of the registration. False if there is none.
inline bool drop_in(uint64_t* ref_slot, const pinrail_registration_t* reg) {
  const uint64_t word = load_slot(ref_slot);
  if (!has_some(word, reg)) return false;
  store_slot(ref_slot, word - 1);
  return true;
}

// Drops a reference that the calling thread itself took and has in a reference slot. False if there is none.
inline bool drop_own(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return drop_in(near_ref_slot(thread, reg), reg) || drop_in(far_ref_slot(thread, reg), reg);
}

// As drop_own(), and the registration's last use is the epoch's; the date comes first, for after the drop it may be
// gone.
inline bool drop_dated(const pinrail_thread_t* thread, pinrail_registration_t* reg, const uint64_t* epoch) {
  touch(reg, epoch::load(epoch));
  return drop_own(thread, reg);
}

// Whether the calling thread has counted the registration, be it above or below 0.
inline bool has_count(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  const auto counts = [&](uint64_t word) { return names(word, reg) && count_of(word) != 0; };
  return counts(load_slot(near_ref_slot(thread, reg))) || counts(load_slot(far_ref_slot(thread, reg)));
}

// Takes back what was counted in vain, in the reference slot or in the own count. Who summed meanwhile believed in it,
// and asks again when rollbacks has risen.
__attribute__((noinline, cold)) inline void roll_back(const pinrail_thread_t* thread,
                                                      const pinrail_registration_t* reg) {
  count(thread, reg, -1);
  __atomic_fetch_add(thread->rollbacks, 1,
                     __ATOMIC_SEQ_CST);  // after the reference slot; pairs with the look before a sum
}
__attribute__((noinline, cold)) inline void roll_back_own(const pinrail_thread_t* thread,
                                                          const pinrail_registration_t* reg) {
  add_own(reg, -1);
  __atomic_fetch_add(thread->rollbacks, 1, __ATOMIC_SEQ_CST);  // as above
}

// What must be as it was before a reference was counted, for that to have been in time.
constexpr uint64_t kTakeMask = state::kIndexed | state::kEvictClaim | state::kGenerationMask;

// Takes a reference in the own count. False if the registration is not what word was read of, or not indexed; a claimed
// one is unclaimed.
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

// Takes a reference to the registration that word was read of, while it was in the index.
inline bool take(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  constexpr uint64_t kUsual = state::kIndexed | state::kPerThread;
  if ((word & (state::kIndexed | state::kEvictClaim)) != state::kIndexed) return false;
  if ((word & kUsual) != kUsual) return try_acquire(reg, word);
  if (!count(thread, reg, 1)) return take_own(thread, reg, word);
  if (((state::load(reg) ^ word) & kTakeMask) == 0) return true;
  roll_back(thread, reg);
  return false;
}

// The same, of a claimed one, too: that is unclaimed.
inline bool take_revoking_claim(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  return (word & state::kPerThread) != 0 ? take_own(thread, reg, word) : try_acquire(reg, word);
}

// Counts a registration that may have become another one meanwhile, but is counted per thread for ever
// (registration_arena/A3), and looks: true if it is indexed and was not claimed; then it stays what it is. False, too,
// where that has no reference slot now.
inline bool hold(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!count(thread, reg, 1)) return false;
  if ((state::load(reg) & (state::kIndexed | state::kEvictClaim)) == state::kIndexed) return true;
  roll_back(thread, reg);
  return false;
}

// Drops a reference of a registration that is counted per thread; the state afterwards.
inline uint64_t drop_counted(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  count_surely(thread, reg, -1);
  return state::load_after_count(reg);
}

// A sum that is final came out below 0: somebody dropped more than he had. The next registration must not pay for it.
inline void discard_excess_drops(pinrail_registration_t* reg, int64_t sum) {
  if (sum < 0) add_own(reg, -sum);
}

// Of a registration that is being given back: what the calling thread's reference slots count goes into the own count,
// so that the next one in that memory begins without it.
inline void fold_own(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (has_count(thread, reg)) thread->fold(thread, reg);
}

// False if the claim was broken already.
inline bool revoke_claim(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  while ((word & state::kEvictClaim) != 0) {
    if (state::exchange(reg, &word, word & ~state::kEvictClaim)) return true;
  }
  return false;
}

// As discard_excess_drops(), but only if the claim holds: a sum that a hit overtook may have seen a drop without its
// taking. False if the claim was broken.
inline bool discard_excess_drops_if_claimed(pinrail_registration_t* reg, int64_t sum) {
  if ((state::load(reg) & state::kEvictClaim) == 0) return false;
  discard_excess_drops(reg, sum);
  return true;
}

// Host service forget_notes; see component.h.
void forget_notes(const pinrail_start_table_t& table);

// references/C5. Under the lock that sums.
inline bool is_summed(uint64_t word) { return (word & (state::kSummed | state::kReleaseClaim)) == state::kSummed; }
inline int64_t& kept_part(const pinrail_registration_t* reg) { return *static_cast<int64_t*>(arena::area_of(reg)); }

// A sum that could not be made.
constexpr int64_t kUnknown = PINRAIL_REFERENCES_UNKNOWN;

// Host services count_references, settle_dead and counts_per_thread; see component.h. sum(): false if the barrier
// failed.
bool sum(pinrail_registration_t* const* regs, size_t count, pinrail_sum_t mode, int64_t* references_out);
int settle_dead(pinrail_handle_t handle, pinrail_dead_t what);
bool can_sum();

}  // namespace pinrail::references

#endif
