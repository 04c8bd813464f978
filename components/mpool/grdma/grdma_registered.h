// SPDX-License-Identifier: BSD-3-Clause
// grdma_registered.h - every registration of one pool that the device knows; those of them that are dead and were found
// held are in limbo.
//
// Owns     their array. Not the registrations.
// Threads  all functions under the cache lock (`mutex`), or they take it. Limbo changes under that of Unindexed
//          besides, so that either lock is enough to read it.
// Hook     limbo_hook() alone.
//
// grdma_registered/M1  A registration is in the array from before its register_mem until after its
//     deregister_mem, except a victim whose place in the budget was taken: InFlight::to_release counts that one.
// grdma_registered/M2  In limbo are exactly those that were summed dead and held, and said to be (references/C5): the
//     last drop of one gives it back. The sum may have seen a speculative take of a find that rolled it back
//     afterwards; so all are looked at again once thread->rollbacks has risen above oldest_rollbacks_.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_REGISTERED_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_REGISTERED_H

#include <atomic>
#include <vector>

#include "components/mpool/grdma/grdma_eviction_list.h"
#include "components/mpool/grdma/grdma_unindexed.h"
#include "framework/mpool/messages.h"

namespace pinrail::grdma {

class Registered {
 public:
  static constexpr size_t kBatch = 128;       // so many are summed with one barrier
  static constexpr size_t kQuietBatch = 256;  // so many are summed without one in one hold of the lock

  Registered(Mutex& cache_mutex, const pinrail_host_t* host, Unindexed* unindexed)
      : mutex(cache_mutex), host_(host), unindexed_(*unindexed), round_{shortcut::of(host)->chunks} {}

  Round* round() { return &round_; }
  // Makes room for one more. False: there is no memory, or the registration has no number.
  bool reserve_locked(const pinrail_registration_t* reg) REQUIRES(mutex) {
    return arena::is_number(arena::number_of(reg)) && (!round_.is_full() || grow_locked());
  }
  // Adds a pending registration. There is room.
  void add_locked(pinrail_registration_t* reg, uint64_t epoch) REQUIRES(mutex) { round_.add(reg, epoch); }
  void remove_locked(pinrail_registration_t* reg) REQUIRES(mutex);
  // The same, in the place of a victim, which leaves.
  void replace_locked(const pinrail_registration_t* victim, pinrail_registration_t* reg, uint64_t epoch)
      REQUIRES(mutex) {
    round_.replace(victim, reg, epoch);
  }

  // The registration is dead and was summed as held. rollbacks: thread->rollbacks before that sum. The caller says so
  // to the library afterwards; from then on its last drop may give it back.
  void move_to_limbo_locked(pinrail_registration_t* reg, uint64_t rollbacks) REQUIRES(mutex);
  // The same for those of Unindexed::first_displaced(), which leave the displaced list. What was summed as idle as
  // well: until it is given back, events reach it there; and a find may count a reference before the library sums it
  // again, which then is rolled back.
  void take_displaced_locked(pinrail_registration_t* const* regs, size_t count, uint64_t rollbacks) REQUIRES(mutex);
  // relaxed: a hint.
  bool has_limbo() const { return oldest_rollbacks_.load(std::memory_order_relaxed) != kNoLimbo; }
  bool needs_recheck(const pinrail_thread_t* thread) const {
    const uint64_t rollbacks = oldest_rollbacks_.load(std::memory_order_relaxed);
    return rollbacks != kNoLimbo && rollbacks != __atomic_load_n(thread->rollbacks, __ATOMIC_RELAXED);
  }
  // A walk through limbo, one thread at a time. False: another thread walks.
  bool begin_recheck_locked(const pinrail_thread_t* thread) REQUIRES(mutex);
  size_t next_to_recheck_locked(pinrail_registration_t** regs_out, size_t most, bool* more_out) REQUIRES(mutex);
  // Breaks the walk off; the next one begins anew.
  void stop_recheck() EXCLUDES(mutex);
  // For a restart: what is in limbo is not looked at again.
  void forget_rollbacks_locked() REQUIRES(mutex);
  // For a reader of limbo that holds the lock of Unindexed.
  const Round& limbo_hook() const { return round_; }

  // Counts those that are referenced. The lock is given back between batches. No other call on the pool may be under
  // way; the gc thread may move some into limbo or away meanwhile, and what it moves is counted twice at worst, never
  // left out.
  void count_referenced(mpool::Referenced* referenced) EXCLUDES(mutex);
  // Whether any but `own` is pending or referenced. What cannot be summed counts as referenced.
  bool is_anything_held_locked(const pinrail_registration_t* own) const REQUIRES(mutex);
  // Calls is_enough(reg) for those that seem idle, dead or not, and are not ready to be evicted, until it returns true;
  // whether it did. They are summed without claims, so that hits go on undisturbed.
  template <typename IsEnough>
  bool visit_idle_locked(IsEnough&& is_enough) const REQUIRES(mutex);
  // For a pool that is being destroyed: the next batch, still in the array.
  size_t next_to_release(pinrail_registration_t** regs_out) EXCLUDES(mutex);
  // May not allocate: there must be room for all.
  void append_spans_locked(std::vector<Span>* spans) const REQUIRES(mutex);

  // grdma_registered/M2, and that all are the pool's and of its kind of memory. NULL: they hold.
  const char* check_locked(const pinrail_mpool_t* owner, Memory memory) const REQUIRES(mutex);

  Mutex& mutex;

 private:
  static constexpr uint64_t kNoLimbo = UINT64_MAX;

  bool grow_locked() REQUIRES(mutex);
  void note_rollbacks_locked(uint64_t rollbacks) REQUIRES(mutex);

  const pinrail_host_t* const host_;
  Unindexed& unindexed_;
  alignas(64) Round round_;               // see Threads above; with what follows one line, which misses write
  size_t recheck_ GUARDED_BY(mutex) = 0;  // the place in limbo that the walk has come down to; 0: there is no walk
  // Of the oldest sum that put one of limbo there. Changes under mutex.
  std::atomic<uint64_t> oldest_rollbacks_{kNoLimbo};
};

template <typename IsEnough>
bool Registered::visit_idle_locked(IsEnough&& is_enough) const {
  for (size_t place = 0; place < round_.size;) {
    pinrail_registration_t* batch[kBatch];
    int64_t references[kBatch];
    size_t count = 0;
    for (; place < round_.size && count < kBatch; ++place) {
      const uint64_t word = state::load(round_.at(place));
      const bool is_ready = (word & state::kIndexed) != 0 && (word & state::kEvictClaim) != 0;
      const bool is_pending = (word & (state::kIndexed | state::kDead)) == 0;
      if (!is_pending && !is_ready) batch[count++] = round_.at(place);
    }
    if (count == 0) break;  // at the end
    host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    if (references[0] == PINRAIL_REFERENCES_UNKNOWN) return false;
    for (size_t i = 0; i < count; ++i) {
      if (references[i] <= 0 && is_enough(batch[i])) return true;
    }
  }
  return false;
}

}  // namespace pinrail::grdma

#endif
