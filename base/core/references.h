// SPDX-License-Identifier: BSD-3-Clause
// references.h - who holds a registration? Counted in its state word, or per thread.
//
// SHARED: one atomic count in the state word. The last drop is seen by who makes it.
// THREADS: each thread has a small table of cells, (registration, signed count), that it alone writes, with plain
// stores. The references of a registration are its own count (registration_arena.h), an atomic word, plus all cells
// that name it; each of them may be negative, for a reference may be dropped on another thread than took it. Nobody
// knows the sum until somebody must: to evict, to give back what is dead, to destroy. Each thread has two cells for a
// registration: the near one, of a few that many share and that lie close together; and the far one for when that
// counts another registration. Where both count others, the own count counts.
//
// How the sum is learned: make the registration untakeable first (sealed or dead), then one membarrier, then add up.
//   taking    cell + 1, then look at the state: sealed or dead -> cell - 1 and go the slow way.
//   dropping  cell - 1, then look at the state: dead -> tell the gc.
//   summing   set the state, membarrier (every thread is now either seen by the sum, or will see the state), add up.
// The compiler barrier between cell and state pairs with that membarrier; where the kernel refuses it from the
// beginning, threads have no cells, that is all have the same full ones of nobody, and the own counts count everything.
// Where it fails later, nothing is concluded: what cannot be summed is held (kUnknown), and the pools make no more
// registrations that are counted per thread.
//
// No count wraps. A cell that has counted kMost is folded: added to the own count, and 0 then. The own count has 64
// bits, and each reference that is taken or dropped moves it by 1 at most, be it late: to wrap it takes 2^63 of them.
//
// references/C1  Once a registration is untakeable its counts only fall, but for takings that fail and are undone in
//     their own cell, so a sum of 0 is true and stays true. A sum above 0 may be of one that will be undone: undone
//     rises then.
// references/C2  A cell that counts something keeps its registration; only a cell of 0 is given to another. Memory of a
//     registration that was counted per thread serves only such registrations again, for its cells may cancel out
//     without being 0 each.
// references/C3  Cells are folded under the lock that sums: that of a thread that ends, that of one that has counted
//     kMost.
// references/C4  Behind each near cell may stand a note of the registration that it names, from when its thread took it
//     by its start: its entry's date, the version of the entry's line, its generation, and its pool; of GPU memory its
//     entry in another table (allocations.h), and then its pool. While that version stands it is as takeable as it was
//     (starts/S1), so that a drop need not look at it: it dates the entry, and looks at the version again when it has
//     counted. Who destroys a table has the notes of it forgotten first.
// references/C5  What is dead, was summed after a membarrier, and is held, may be marked as summed: then the cells'
//     part of the
// sum
//     is kept in the first word of the pool's area, and from then on references are dropped in the own count, under the
//     lock that sums, so that the last one is known without a sum. A cell that a drop or an undo touched, for it did
//     not see the mark in time, is found by adding up again: by the drop itself; for an undo, by who sees that `undone`
//     has risen. Until then the kept part is too high, never too low.
#ifndef PINRAIL_BASE_CORE_REFERENCES_H
#define PINRAIL_BASE_CORE_REFERENCES_H

#include <pinrail/component.h>

#include <atomic>
#include <initializer_list>

#include "base/core/registration.h"
#include "base/core/registration_arena.h"
#include "base/core/start_line.h"

namespace pinrail::references {

constexpr unsigned kNearBits = 6;
constexpr size_t kNear = size_t{1} << kNearBits;  // cells at hand; so few that hits find them in the cache
constexpr unsigned kFarBits = 10;
constexpr size_t kFar = size_t{1} << kFarBits;  // cells of what finds its near one taken
constexpr size_t kNearWords = 8;  // a line: a near cell, and behind it what its thread alone reads: references/C4
constexpr size_t kWords = kNearWords * kNear + kFar;  // 12 KiB per thread
constexpr int kMost = 30000;                          // of one cell, above or below 0; then it is folded
constexpr uint64_t kNobodys = ~uint64_t{0xffff} + 1;  // a cell that counts one reference to no registration

// A cell: the registration's address above, the count in the low 16 bits.
inline uint64_t tag_of(const pinrail_registration_t* reg) { return reinterpret_cast<uintptr_t>(reg) << 16; }
constexpr int16_t count_of(uint64_t cell) { return static_cast<int16_t>(cell & 0xffff); }
inline bool names(uint64_t cell, const pinrail_registration_t* reg) { return ((cell ^ tag_of(reg)) >> 16) == 0; }

// Neighbours in a slab, which lie one or some more lines apart, have cells of their own: as many in a row as there are
// cells share none. (From x and x/2 together all bits of x can be told.)
constexpr uintptr_t spread(uintptr_t address) { return address ^ address >> 1; }
// The words at which its cells stand. A line of near cells for a line of registrations: so hits need but mask the bits.
constexpr size_t kLine = kNearWords * sizeof(uint64_t);
inline size_t near_of(const pinrail_registration_t* reg) {
  static_assert(kLine == sizeof(pinrail_registration_t), "they are counted alike");
  return (spread(reinterpret_cast<uintptr_t>(reg)) & (kLine * (kNear - 1))) / sizeof(uint64_t);
}
inline size_t far_of(const pinrail_registration_t* reg) {
  return kNearWords * kNear + (spread(reinterpret_cast<uintptr_t>(reg)) / kLine & (kFar - 1));
}
// From a cell to the next one.
constexpr size_t words_of_cell(size_t place) { return place < kNearWords * kNear ? kNearWords : 1; }

inline uint64_t* near_cell(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return &thread->cells[near_of(reg)];
}
inline uint64_t* far_cell(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return &thread->cells[far_of(reg)];
}
inline uint64_t look(const uint64_t* cell) {
  return __atomic_load_n(cell, __ATOMIC_RELAXED);  // relaxed: this thread alone writes it
}

inline void put(uint64_t* cell, uint64_t word) {
  // release: what the holder did is seen by who finds the sum 0; pairs with the acquire load in sum().
  __atomic_store_n(cell, word, __ATOMIC_RELEASE);
  // Compiler barrier: the state is looked at after this. Pairs with the membarrier of sum().
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// What a thread knows of a registration from taking it by its entry (references/C4).
struct Note {
  uint32_t* date;    // of the entry
  uint32_t version;  // of its line
  uint64_t generation;
  const void* by;  // the pool of the C face, or allocations::noted_of(); without one nothing is noted
};
// The calling thread has counted the registration in this near cell of its.
inline void note_in(uint64_t* near, const Note& note) {
  // relaxed, here and below: other threads only ever clear it (forget_notes).
  __atomic_store_n(&near[1], note.by == nullptr ? 0 : reinterpret_cast<uintptr_t>(note.date), __ATOMIC_RELAXED);
  near[2] = note.generation;
  near[3] = reinterpret_cast<uintptr_t>(note.by);
  near[4] = note.version;
}
// Where `by` is an entry: its pool as well.
inline void note_pool(uint64_t* near, const pinrail_mpool_t* pool) { near[5] = reinterpret_cast<uintptr_t>(pool); }
// The same, if it has counted it there.
inline void note(const pinrail_thread_t* thread, const pinrail_registration_t* reg, const Note& note) {
  uint64_t* near = near_cell(thread, reg);
  if (names(look(near), reg)) note_in(near, note);
}
inline void note_nothing(uint64_t* near) { __atomic_store_n(&near[1], 0, __ATOMIC_RELAXED); }

// Counts in that cell, unless it counts another one or too many.
inline bool count_in(uint64_t* cell, const pinrail_registration_t* reg, int step) {
  const uint64_t word = look(cell);
  const int now = count_of(word);
  if (!names(word, reg) && now != 0) return false;
  const int next = now + step;
  if (next > kMost || next < -kMost) return false;
  put(cell, tag_of(reg) | static_cast<uint16_t>(next));
  return true;
}

// The part of the sum that no cell counts.
inline int64_t add_own(const pinrail_registration_t* reg, int64_t more) {
  // seq_cst: a taking looks at the state after this; a drop publishes what its holder did, as put() does.
  return __atomic_add_fetch(arena::own_count(reg), more, __ATOMIC_SEQ_CST);
}
inline int64_t own_count(const pinrail_registration_t* reg) {
  return __atomic_load_n(arena::own_count(reg), __ATOMIC_SEQ_CST);
}

// As count(), where the first try failed: a cell that is full is folded first.
__attribute__((noinline, cold)) inline bool count_after_fold(const pinrail_thread_t* thread,
                                                             const pinrail_registration_t* reg, int step) {
  const auto is_full = [&](const uint64_t* cell) { return names(look(cell), reg) && count_of(look(cell)) != 0; };
  if (!is_full(near_cell(thread, reg)) && !is_full(far_cell(thread, reg))) return false;
  thread->fold(thread, reg);
  return count_in(near_cell(thread, reg), reg, step) || count_in(far_cell(thread, reg), reg, step);
}

// Counts in a cell of the calling thread, and what was noted there is forgotten. False if it has none for this
// registration now: then nothing happened. What was just counted is taken back in the same cell (references/C1).
inline bool count(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  uint64_t* near = near_cell(thread, reg);
  if (!count_in(near, reg, step)) {
    return count_in(far_cell(thread, reg), reg, step) || count_after_fold(thread, reg, step);
  }
  note_nothing(near);
  return true;
}

// Counts in a cell, or else in the own count.
inline void count_surely(const pinrail_thread_t* thread, const pinrail_registration_t* reg, int step) {
  if (!count(thread, reg, step)) add_own(reg, step);
}

// The same for the first one, in few steps: false if the near cell counts anything. What is noted there is of another
// one still.
inline bool count_first(uint64_t* near, const pinrail_registration_t* reg) {
  if (count_of(look(near)) != 0) return false;
  put(near, tag_of(reg) + 1);
  return true;
}

// The same for one more, if the near cell names it already, and what is noted stays; else nothing happens.
inline bool count_again(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  uint64_t* near = near_cell(thread, reg);
  const uint64_t word = look(near);
  if ((word ^ tag_of(reg)) >= kMost) return false;
  put(near, word + 1);
  return true;
}

// Whether the cell has references of the registration that its own thread can drop.
inline bool has_some(uint64_t cell, const pinrail_registration_t* reg) {
  return (cell ^ tag_of(reg)) - 1 < kMost;  // else it names another, or counts less than 1
}

// Drops a reference that the cell has of the registration. False if there is none.
inline bool drop_in(uint64_t* cell, const pinrail_registration_t* reg) {
  const uint64_t word = look(cell);
  if (!has_some(word, reg)) return false;
  put(cell, word - 1);
  return true;
}

// Drops a reference that the calling thread itself took and has in a cell. False if there is none.
inline bool drop_own(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return drop_in(near_cell(thread, reg), reg) || drop_in(far_cell(thread, reg), reg);
}

// As drop_own(), and the registration's last use is the epoch's; the date comes first, for after the drop it may be
// gone.
inline bool drop_dated(const pinrail_thread_t* thread, pinrail_registration_t* reg, const uint64_t* epoch) {
  touch(reg, epoch::load(epoch));
  return drop_own(thread, reg);
}

// What became of a drop by what the thread has noted.
enum class Noted : uint8_t {
  no,      // nothing is noted that is still true: nothing was dropped
  done,    // dropped
  stirred  // dropped, and its line has changed: it may be dead, and then the pool must hear of it
};

// Drops a reference that the calling thread took itself, without a look at the registration. noted_out: Note::by, if it
// was dropped.
inline Noted drop_noted(const pinrail_thread_t* thread, pinrail_handle_t handle, const void** noted_out) {
  uint64_t* near = near_cell(thread, handle.reg);
  const uint64_t word = look(near);
  const uintptr_t noted = __atomic_load_n(&near[1], __ATOMIC_RELAXED);
  auto* date = reinterpret_cast<uint32_t*>(noted);  // NOLINT(performance-no-int-to-ptr): as note_in() wrote it
  if (!has_some(word, handle.reg) || date == nullptr || near[2] != handle.generation) return Noted::no;
  const uint32_t version = start_line::version_of(date);
  if (near[4] != version) return Noted::no;
  start_line::use(date, epoch::load(thread->epoch));
  put(near, word - 1);
  *noted_out = reinterpret_cast<const void*>(near[3]);  // NOLINT(performance-no-int-to-ptr)
  if (start_line::version_of(date) == version) return Noted::done;
  return Noted::stirred;
}

// Of a note that was just used for a drop and had a pool besides.
inline const pinrail_mpool_t* noted_pool(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  return reinterpret_cast<const pinrail_mpool_t*>(near_cell(thread, reg)[5]);  // NOLINT(performance-no-int-to-ptr)
}

// Whether the calling thread has counted the registration, be it above or below 0.
inline bool has_count(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  const auto counts = [&](uint64_t word) { return names(word, reg) && count_of(word) != 0; };
  return counts(look(near_cell(thread, reg))) || counts(look(far_cell(thread, reg)));
}

// Takes back what was counted in vain, in the cell or in the own count. Who summed meanwhile believed in it, and asks
// again when undone has risen.
__attribute__((noinline, cold)) inline void undo(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  count(thread, reg, -1);
  __atomic_fetch_add(thread->undone, 1, __ATOMIC_SEQ_CST);  // after the cell; pairs with the look before a sum
}
__attribute__((noinline, cold)) inline void undo_own(const pinrail_thread_t* thread,
                                                     const pinrail_registration_t* reg) {
  add_own(reg, -1);
  __atomic_fetch_add(thread->undone, 1, __ATOMIC_SEQ_CST);  // as above
}

// What must be as it was before a reference was counted, for that to have been in time.
constexpr uint64_t kLife = state::kIndexed | state::kSealed | state::kGenerationMask;

// Takes a reference in the own count. False if the registration is not what word was read of, or not indexed; a sealed
// one is unsealed.
__attribute__((noinline, cold)) inline bool take_own(const pinrail_thread_t* thread, pinrail_registration_t* reg,
                                                     uint64_t word) {
  const uint64_t generation = state::generation(word);
  add_own(reg, 1);
  word = state::load_after_count(reg);
  while ((word & state::kIndexed) != 0 && state::generation(word) == generation) {
    if ((word & state::kSealed) == 0 || state::exchange(reg, &word, word & ~state::kSealed)) return true;
  }
  undo_own(thread, reg);
  return false;
}

// Takes a reference to the registration that word was read of, while it was in the index.
inline bool take(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  constexpr uint64_t kUsual = state::kIndexed | state::kPerThread;
  if ((word & (state::kIndexed | state::kSealed)) != state::kIndexed) return false;
  if ((word & kUsual) != kUsual) return try_acquire(reg, word);
  if (!count(thread, reg, 1)) return take_own(thread, reg, word);
  if (((state::load(reg) ^ word) & kLife) == 0) return true;
  undo(thread, reg);
  return false;
}

// The same, of a sealed one, too: that is unsealed.
inline bool take_sealed(const pinrail_thread_t* thread, pinrail_registration_t* reg, uint64_t word) {
  return (word & state::kPerThread) != 0 ? take_own(thread, reg, word) : try_acquire(reg, word);
}

// Counts a registration that may have become another one meanwhile, but is counted per thread for ever
// (registration_arena/A3), and looks: true if it is indexed and was not sealed; then it stays what it is. False, too,
// where that has no cell now.
inline bool hold(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!count(thread, reg, 1)) return false;
  if ((state::load(reg) & (state::kIndexed | state::kSealed)) == state::kIndexed) return true;
  undo(thread, reg);
  return false;
}

// Drops a reference of a registration that is counted per thread; the state afterwards.
inline uint64_t drop_counted(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  count_surely(thread, reg, -1);
  return state::load_after_count(reg);
}

// A sum that is final came out below 0: somebody dropped more than he had. The next registration must not pay for it.
inline void forgive(pinrail_registration_t* reg, int64_t sum) {
  if (sum < 0) add_own(reg, -sum);
}

// Of a registration that is being given back: what the calling thread's cells count goes into the own count, so that
// the next one in that memory begins without it.
inline void fold_own(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (has_count(thread, reg)) thread->fold(thread, reg);
}

// False if the seal was broken already.
inline bool unseal(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  while ((word & state::kSealed) != 0) {
    if (state::exchange(reg, &word, word & ~state::kSealed)) return true;
  }
  return false;
}

// As forgive(), but only if the seal holds: a sum that a hit overtook may have seen a drop without its taking. False if
// the seal was broken.
inline bool forgive_sealed(pinrail_registration_t* reg, int64_t sum) {
  if ((state::load(reg) & state::kSealed) == 0) return false;
  forgive(reg, sum);
  return true;
}

// Host service forget_notes; see component.h.
void forget_notes(const pinrail_starts_t& table);

// references/C5. Under the lock that sums.
inline bool is_summed(uint64_t word) { return (word & (state::kSummed | state::kClaimed)) == state::kSummed; }
inline int64_t& kept_part(const pinrail_registration_t* reg) { return *static_cast<int64_t*>(arena::area_of(reg)); }

// A sum that could not be made.
constexpr int64_t kUnknown = PINRAIL_REFERENCES_UNKNOWN;

// Host services count_references, settle_dead and counts_per_thread; see component.h. sum(): false if the barrier
// failed.
bool sum(pinrail_registration_t* const* regs, size_t count, pinrail_sum_t how, int64_t* references_out);
int settle_dead(pinrail_handle_t handle, pinrail_dead_t what);
bool can_sum();

}  // namespace pinrail::references

#endif
