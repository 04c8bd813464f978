// SPDX-License-Identifier: BSD-3-Clause
// references.h - who holds a registration? Counted in its state word, or per thread.
//
// SHARED: one atomic count in the state word. The last drop is seen by who makes it.
// THREADS: each thread has a small table of cells, (registration, signed count), that it alone writes, with plain
// stores. The references of a registration are the count in its state word plus all cells that name it; a cell may be
// negative, for a reference may be dropped on another thread than took it. Nobody knows the sum until somebody must:
// to evict, to give back what is dead, to destroy.
//
// How the sum is learned: make the registration untakeable first (sealed or dead), then one membarrier, then add up.
//   taking    cell + 1, then look at the state: sealed or dead -> cell - 1 and go the slow way.
//   dropping  cell - 1, then look at the state: dead -> tell the gc.
//   summing   set the state, membarrier (every thread is now either seen by the sum, or will see the state), add up.
// The compiler barrier between cell and state pairs with that membarrier; where the kernel refuses it, threads have no
// cells and everything is counted in the state words.
//
// C1  Once a registration is untakeable its counts only fall, but for takings that fail and are undone in their own
//     cell, so a sum of 0 is true and stays true. A sum above 0 may be of one that will be undone: undone rises then.
// C2  A cell that counts something keeps its registration; only a cell of 0 is given to another. Memory of a
//     registration that was counted per thread serves only such registrations again, for its cells may cancel out
//     without being 0 each.
// C3  An ending thread adds its cells to the state words, under the lock that sums.
#ifndef PINRAIL_BASE_CORE_REFERENCES_H
#define PINRAIL_BASE_CORE_REFERENCES_H

#include <pinrail/component.h>

#include <atomic>

#include "base/core/registration.h"

namespace pinrail::references {

constexpr unsigned kCellBits = 10;
constexpr size_t kCells = size_t{1} << kCellBits;  // 8 KiB per thread
constexpr int kMost = 30000;                       // of one cell, above or below 0; beyond, the state word counts

// A cell: the registration's address above, the count in the low 16 bits.
inline uint64_t tag_of(const pinrail_registration_t* reg) { return reinterpret_cast<uintptr_t>(reg) << 16; }
constexpr int16_t count_of(uint64_t cell) { return static_cast<int16_t>(cell & 0xffff); }
inline bool names(uint64_t cell, const pinrail_registration_t* reg) { return ((cell ^ tag_of(reg)) >> 16) == 0; }

// Neighbours in a slab, which lie one or some more lines apart, have cells of their own: as many in a row as there are
// cells share none. (From x and x/2 together all bits of x can be told.)
inline size_t place_of(const pinrail_registration_t* reg) {
  const uintptr_t line = reinterpret_cast<uintptr_t>(reg) >> 6;
  return (line ^ line >> 1) & (kCells - 1);
}

inline void put(uint64_t* cell, uint64_t word) {
  // release: what the holder did is seen by who finds the sum 0; pairs with the acquire load in sum().
  __atomic_store_n(cell, word, __ATOMIC_RELEASE);
  // Compiler barrier: the state is looked at after this. Pairs with the membarrier of sum().
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Counts in the calling thread's cell. False if it has none for this registration now: then nothing happened.
inline bool count(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  if (thread->cells == nullptr) return false;
  uint64_t* cell = &thread->cells[place_of(reg)];
  // relaxed: this thread alone writes it.
  const uint64_t word = __atomic_load_n(cell, __ATOMIC_RELAXED);
  const int now = count_of(word);
  if (!names(word, reg) && now != 0) return false;
  const int next = now + step;
  if (next > kMost || next < -kMost) return false;
  put(cell, tag_of(reg) | static_cast<uint16_t>(next));
  return true;
}

// Out of line: what a hit hardly ever needs. It would cost the others their registers.
__attribute__((noinline, cold)) inline bool count_slow(const pinrail_thread_t* thread,
                                                       const pinrail_registration_t* reg) {
  return count(thread, reg, 1);
}

// count() of one more, in few steps: every hit takes them.
inline bool count_one(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (thread->cells == nullptr) return false;
  uint64_t* cell = &thread->cells[place_of(reg)];
  const uint64_t word = __atomic_load_n(cell, __ATOMIC_RELAXED);  // relaxed: this thread alone writes it
  const uint64_t tag = tag_of(reg);
  const bool is_ours = (word ^ tag) < kMost;  // names it, and counts 0 or more
  if (!is_ours && count_of(word) != 0) return count_slow(thread, reg);
  put(cell, (is_ours ? word : tag) + 1);  // which of the two cannot be predicted
  return true;
}

// The same, if its cell names it already; else nothing happens. For a thread that has cells.
inline bool count_again(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  uint64_t* cell = &thread->cells[place_of(reg)];
  const uint64_t word = __atomic_load_n(cell, __ATOMIC_RELAXED);  // relaxed: this thread alone writes it
  if ((word ^ tag_of(reg)) >= kMost) return false;
  put(cell, word + 1);
  return true;
}

// Drops a reference that the calling thread itself took and has in its cell. False if there is none.
inline bool drop_own(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (thread->cells == nullptr) return false;
  uint64_t* cell = &thread->cells[place_of(reg)];
  const uint64_t word = __atomic_load_n(cell, __ATOMIC_RELAXED);  // relaxed: this thread alone writes it
  if ((word ^ tag_of(reg)) - 1 >= kMost) return false;            // names another, or counts less than 1
  put(cell, word - 1);
  return true;
}

// As drop_own(), and the registration's last use is the epoch's; the date comes first, for after the drop it may be
// gone.
inline bool drop_dated(const pinrail_thread_t* thread, pinrail_registration_t* reg, const uint64_t* epoch) {
  touch(reg, __atomic_load_n(epoch, __ATOMIC_RELAXED));  // relaxed: only the order of eviction hangs on it
  return drop_own(thread, reg);
}

// Whether the calling thread has counted the registration, be it above or below 0.
inline bool has_count(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (thread->cells == nullptr) return false;
  const uint64_t word = __atomic_load_n(&thread->cells[place_of(reg)], __ATOMIC_RELAXED);  // relaxed: its own
  return names(word, reg) && count_of(word) != 0;
}

// Takes back what was counted in vain. Who summed meanwhile believed in it, and asks again when undone has risen.
__attribute__((noinline, cold)) inline void undo(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  count(thread, reg, -1);
  __atomic_fetch_add(thread->undone, 1, __ATOMIC_SEQ_CST);  // after the cell; pairs with the look before a sum
}

// Takes a reference to the registration that word was read of, while it was in the index.
inline bool take(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  constexpr uint64_t kLife = state::kIndexed | state::kSealed | state::kGenerationMask;
  constexpr uint64_t kUsual = state::kIndexed | state::kPerThread;
  if ((word & (kUsual | state::kSealed)) != kUsual || !count_one(thread, reg)) {
    return (word & (state::kIndexed | state::kSealed)) == state::kIndexed && try_acquire(reg, word);
  }
  if (((state::load(reg) ^ word) & kLife) == 0) return true;
  undo(thread, reg);
  return false;
}

// Counts a registration that may have become another one meanwhile, but is counted per thread for ever (A3 of
// registration_arena.h), and looks: true if it is indexed and was not sealed; then it stays what it is. False, too,
// where that has no cell now.
inline bool hold(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!count_one(thread, reg)) return false;
  if ((state::load(reg) & (state::kIndexed | state::kSealed)) == state::kIndexed) return true;
  undo(thread, reg);
  return false;
}

// Drops a reference of a registration that is counted per thread; the state afterwards.
inline uint64_t drop_counted(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!count(thread, reg, -1)) {
    // acq_rel: as a cell's release. The count in the word may fall below 0: it is one part of a sum.
    __atomic_fetch_sub(&reg->state, state::kOne, __ATOMIC_ACQ_REL);
  }
  return state::load(reg);
}

// A sum that is final came out below 0: somebody dropped more than he had. The next registration must not pay for it.
inline void forgive(pinrail_registration_t* reg, int64_t sum) {
  if (sum < 0) __atomic_fetch_add(&reg->state, static_cast<uint64_t>(-sum) << state::kReferenceShift, __ATOMIC_ACQ_REL);
}

// Host service count_references; see component.h.
void sum(pinrail_registration_t* const* regs, size_t count, int64_t* references_out);

}  // namespace pinrail::references

#endif
