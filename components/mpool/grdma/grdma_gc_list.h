// SPDX-License-Identifier: BSD-3-Clause
// grdma_gc_list.h - the dead registrations of one pool that wait until a call, or the gc thread, finds out whether they
// are still held.
//
// Owns     the list, its size, the pool's membership in the gc thread. Not the registrations: a caller that takes them
//          off is responsible for them.
// Threads  all functions may run together. The rest list changes under the cache lock.
// Hook     what ends in _hook, and bytes().
//
// grdma_gc_list/D1  A registration is pushed once, by the event that killed it, and only if its last drop does not give
//     it back by itself.
// grdma_gc_list/D2  bytes() and count() are of what is on the list and of what is displaced. They may lag: they serve
//     as bounds.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_GC_LIST_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_GC_LIST_H

#include <atomic>

#include "base/core/status.h"
#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_area.h"

namespace pinrail::grdma {

class GcList {
 public:
  // is_due: the pool's flag, which each of its register calls reads. Set here while more than limit_bytes wait.
  GcList(Mutex& cache_mutex, const pinrail_host_t* host, uint64_t limit_bytes, std::atomic<bool>& is_due)
      : mutex(cache_mutex), host_(host), limit_bytes_(limit_bytes), is_due_(is_due) {}

  // The gc thread calls drain(pool) when it was woken. Join it before hooks come in; after leave_thread() it is not in
  // a drain of this pool and calls none.
  Status join_thread(int (*drain)(void*, pinrail_thread_t*), void* pool) {
    return host_->pools->gc_join(host_, drain, pool, 0, &member_);
  }
  void leave_thread() {
    if (member_ != nullptr) host_->pools->gc_leave(host_, member_);
  }
  bool has_thread() const { return member_ != nullptr; }
  void wake_thread_hook(pinrail_gc_when_t when);

  // A chain linked by gc_next, from first to last. The caller holds the index lock.
  void push_hook(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes, uint64_t count);
  // Counts one that died and stands on the displaced list instead. is_first: that list was empty.
  void count_displaced_hook(uint64_t bytes, bool is_first);

  // A chain linked by gc_next, now the caller's: what was put back, else all that was pushed. NULL: there is none.
  pinrail_registration_t* take() EXCLUDES(mutex);
  // The reverse of take(), for what could not be summed or was too much. They are counted still.
  void put_back(pinrail_registration_t* chain) EXCLUDES(mutex);
  // As put_back(), for registrations that were counted off.
  void put_batch_back(pinrail_registration_t* const* regs, size_t count) EXCLUDES(mutex);
  void count_off(uint64_t bytes, uint64_t count);
  // Whether no more than limit_bytes wait; then calls need not drain.
  bool clear_due_below_limit();
  // For a restart, where Registered has them all.
  void forget_locked() REQUIRES(mutex);

  // relaxed: hints. The caller that needs the registrations loads them with acquire.
  bool has_pushed() const { return pushed_.load(std::memory_order_relaxed) != nullptr; }
  // More than limit_bytes wait: the next call of any kind drains.
  bool is_due() const { return is_due_.load(std::memory_order_relaxed); }
  bool has_rest() const { return rest_.load(std::memory_order_relaxed) != nullptr; }
  // seq_cst: clear_due_below_limit(). As acquire: so that nothing is seen to go that was not seen to come.
  uint64_t bytes() const {
    const uint64_t gone = gone_bytes_.load();
    return pushed_bytes_.load(std::memory_order_relaxed) - gone;
  }
  uint64_t count() const {
    const uint64_t gone = gone_count_.load(std::memory_order_acquire);
    return pushed_count_.load(std::memory_order_relaxed) - gone;
  }

  Mutex& mutex;

 private:
  void note_growth_hook(bool is_first);
  void count_on_hook(uint64_t bytes, uint64_t count);

  const pinrail_host_t* const host_;
  const uint64_t limit_bytes_;
  std::atomic<bool>& is_due_;
  void* member_ = nullptr;  // NULL: only calls drain the pool

  // What events and drains write: one line.
  alignas(64) std::atomic<pinrail_registration_t*> pushed_{nullptr};  // by hooks; taken as a whole
  std::atomic<pinrail_registration_t*> rest_{nullptr};                // changes under mutex
  std::atomic<uint64_t> pushed_bytes_{0}, pushed_count_{0};           // ever; change under the index lock
  // Counted off; less what was counted on without the index lock: what is displaced, and what was put back.
  std::atomic<uint64_t> gone_bytes_{0}, gone_count_{0};
};

}  // namespace pinrail::grdma

#endif
