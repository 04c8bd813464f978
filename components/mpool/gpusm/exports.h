// SPDX-License-Identifier: BSD-3-Clause
// exports.h - finds the validity slots whose exported memory overlaps a range.
//
// Owns     its arrays, allocated once by create().
// Threads  put(), clear(), keep() and take_kept() exclude each other by mutex_; for one slot put() and clear()
//          alternate. for_overlapping_hook() may run beside them.
// Hook     Functions whose names end in _hook: they take no lock.
//
// exports/X1  A range is found if its put() returned before the search began and its clear() has not begun.
//
// A hash table of chains leads to the ranges, by their size: a range of more than 2^(s-1) and at most 2^s bytes is in
// the chain of (s, base >> s). So ranges that overlap a few bytes are in two or three chains for each size s in use. A
// search visits all ranges instead if a chain changed during it, or if it would have to follow too many chains.
#ifndef PINRAIL_COMPONENTS_MPOOL_GPUSM_EXPORTS_H
#define PINRAIL_COMPONENTS_MPOOL_GPUSM_EXPORTS_H

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/core/status.h"
#include "base/sync/lock.h"

namespace pinrail::gpusm {

class Exports {
 public:
  Status create(uint32_t count);  // count: number of slots. OUT_OF_RESOURCE: no memory
  // Before keep() and the functions of waited words may be called. OUT_OF_RESOURCE: no memory.
  Status create_kept(uint32_t count);
  void put(uint32_t slot, uintptr_t base, size_t length) EXCLUDES(mutex_);
  void clear(uint32_t slot) EXCLUDES(mutex_);

  // A list of slots that stay although their registrations have ended. keep() adds one. take_kept() empties the list
  // and returns the first that was in it, next_kept() the one after; kNone: there is none. The caller of take_kept()
  // keeps or clears each.
  static constexpr uint32_t kNone = UINT32_MAX;
  void keep(uint32_t slot) EXCLUDES(mutex_);
  uint32_t take_kept() EXCLUDES(mutex_);
  uint32_t next_kept(uint32_t slot) const { return kept_slots_[slot].next; }

  // The value that a slot's word had when a free had waited for its importers: no other free waits for them.
  uint64_t waited_hook(uint32_t slot) const { return kept_slots_[slot].waited.load(); }
  void set_waited_hook(uint32_t slot, uint64_t word) { kept_slots_[slot].waited.store(word); }

  // Calls visit(slot) for each slot whose range overlaps [base, end), possibly more than once. Returns how many ranges
  // it compared.
  template <typename Visit>
  size_t for_overlapping_hook(uintptr_t base, uintptr_t end, Visit&& visit) const;

 private:
  struct Range {
    std::atomic<uintptr_t> base{0};
    std::atomic<uintptr_t> end{0};  // 0: none
    std::atomic<uint32_t> next{kNone};
  };
  struct Kept {
    uint32_t next = kNone;
    std::atomic<uint64_t> waited{0};
  };
  static constexpr unsigned kClasses = 64;
  // The s of a length. Ranges of more than 2^63 bytes are in the last class, with two values of base >> s.
  static unsigned class_of(size_t length) {
    if (length <= 1) return 0;
    const auto bits = 64 - static_cast<unsigned>(__builtin_clzll(static_cast<unsigned long long>(length) - 1));
    return bits < kClasses ? bits : kClasses - 1;
  }
  std::atomic<uint32_t>& chain_hook(unsigned shift, uintptr_t place) const {
    const uint64_t mixed = (uint64_t{place} << 6 | shift) * 0x9E3779B97F4A7C15u;
    return chains_[mixed >> 32 & chain_mask_];
  }
  void link_locked(uint32_t slot, unsigned shift) REQUIRES(mutex_);
  void unlink_locked(uint32_t slot, unsigned shift) REQUIRES(mutex_);
  template <typename Visit>
  bool follow_chains_hook(uintptr_t base, uintptr_t end, Visit& visit, size_t* checks) const;
  template <typename Visit>
  void check_overlap_hook(uint32_t slot, uintptr_t base, uintptr_t end, Visit& visit, size_t* checks) const {
    ++*checks;
    const Range& range = ranges_[slot];
    if (range.base.load() < end && range.end.load() > base) visit(slot);
  }

  std::unique_ptr<Range[]> ranges_;
  std::unique_ptr<Kept[]> kept_slots_;               // NULL unless slots may be kept
  std::unique_ptr<std::atomic<uint32_t>[]> chains_;  // the first slot of each chain
  uint64_t chain_mask_ = 0;
  Mutex mutex_{LockRank::leaf};
  uint32_t in_class_[kClasses] GUARDED_BY(mutex_) = {};
  uint32_t kept_ GUARDED_BY(mutex_) = kNone;  // the first of the kept slots
  // All accesses are seq_cst.
  std::atomic<uint64_t> classes_{0};                         // bit s: a range of that class exists
  std::atomic<uint32_t> version_{0};                         // seqlock over the chains: odd while one changes
  std::atomic<uint32_t> used_{0};                            // slots from here on were never used
  std::atomic<uintptr_t> lowest_{UINTPTR_MAX}, highest_{0};  // bounds of all ranges so far: most events are outside
};

template <typename Visit>
size_t Exports::for_overlapping_hook(uintptr_t base, uintptr_t end, Visit&& visit) const {
  size_t checks = 0;
  if (end <= lowest_.load() || base >= highest_.load()) return checks;
  const uint32_t before = version_.load();
  const bool is_whole = before % 2 == 0 && follow_chains_hook(base, end, visit, &checks);
  if (is_whole && version_.load() == before) return checks;
  const uint32_t used = used_.load();
  for (uint32_t slot = 0; slot < used; ++slot) check_overlap_hook(slot, base, end, visit, &checks);
  return checks;
}

// Follows the chains that may have overlapping ranges. False: they are too many, or one changed.
template <typename Visit>
bool Exports::follow_chains_hook(uintptr_t base, uintptr_t end, Visit& visit, size_t* checks) const {
  const size_t most = size_t{used_.load()} + 8;
  for (uint64_t left = classes_.load(); left != 0; left &= left - 1) {
    const auto shift = static_cast<unsigned>(__builtin_ctzll(left));
    const uintptr_t last = (end - 1) >> shift, here = base >> shift, first = here == 0 ? 0 : here - 1;
    if (last - first >= most) return false;
    for (uintptr_t place = first; place <= last; ++place) {
      for (uint32_t slot = chain_hook(shift, place).load(); slot != kNone; slot = ranges_[slot].next.load()) {
        if (*checks > most) return false;  // a chain that is being changed may form a cycle
        check_overlap_hook(slot, base, end, visit, checks);
      }
    }
  }
  return true;
}

}  // namespace pinrail::gpusm

#endif
