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
// C1  Once a registration is untakeable its counts only fall (a failed taking is undone in its own cell), so a sum of 0
//     is true and stays true.
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
constexpr int kMost = 30000;                       // of one cell; beyond, the state word counts

// A cell: the registration's address above, the count in the low 16 bits.
inline uint64_t tag_of(const pinrail_registration_t* reg) { return reinterpret_cast<uintptr_t>(reg) << 16; }
constexpr int16_t count_of(uint64_t cell) { return static_cast<int16_t>(cell & 0xffff); }
inline bool names(uint64_t cell, const pinrail_registration_t* reg) { return ((cell ^ tag_of(reg)) >> 16) == 0; }

inline size_t place_of(const pinrail_registration_t* reg) {
  return (reinterpret_cast<uintptr_t>(reg) * 0x9E3779B97F4A7C15u) >> (64 - kCellBits);
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
  // release: what the holder did is seen by who finds the sum 0; pairs with the acquire load in sum().
  __atomic_store_n(cell, tag_of(reg) | static_cast<uint16_t>(next), __ATOMIC_RELEASE);
  // Compiler barrier: the state is looked at after this. Pairs with the membarrier of sum().
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}

// Drops a reference that the calling thread itself took and has in its cell. False if there is none.
inline bool drop_own(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (thread->cells == nullptr) return false;
  uint64_t* cell = &thread->cells[place_of(reg)];
  const uint64_t word = __atomic_load_n(cell, __ATOMIC_RELAXED);  // relaxed: this thread alone writes it
  if (!names(word, reg) || count_of(word) <= 0) return false;
  __atomic_store_n(cell, word - 1, __ATOMIC_RELEASE);   // as in count()
  std::atomic_signal_fence(std::memory_order_seq_cst);  // as in count()
  return true;
}

// Whether the calling thread has counted the registration, be it above or below 0.
inline bool has_count(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  if (thread->cells == nullptr) return false;
  const uint64_t word = __atomic_load_n(&thread->cells[place_of(reg)], __ATOMIC_RELAXED);  // relaxed: its own
  return names(word, reg) && count_of(word) != 0;
}

// Takes a reference to the registration that word was read of, while it was in the index.
inline bool take(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  if ((word & (state::kIndexed | state::kSealed)) != state::kIndexed) return false;
  if ((word & state::kPerThread) == 0 || !count(thread, reg, 1)) return try_acquire(reg, word);
  const uint64_t again = state::load(reg);
  const bool same = ((again ^ word) & (state::kIndexed | state::kSealed | state::kGenerationMask)) == 0;
  if (!same) count(thread, reg, -1);
  return same;
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
