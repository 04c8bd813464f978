// SPDX-License-Identifier: BSD-3-Clause
// vma.h - which registrations cover this range?
//
// Owns     the index of one pool. Not the registrations (their mpool does), nor the pages (the caller does).
// Threads  "-" may run together, "X" exclude each other by the index lock:
//                            find  insert  remove  invalidate_hook
//          find               -     -       -       -
//          insert             -     X       X       X
//          remove             -     X       X       X
//          invalidate_hook    -     X       X       X
//          prepare, find_locked, find_all, count, check: as insert; begin, too, if the find before it was not sure;
//          cancel: as find.
// Hook     invalidate_hook() only; no function allocates with the lock held.
//
// vma/I1  Registrations of equal rights and traits form a class; each class is a Tree. There are at most 64.
// vma/I2  A registration is in the index from insert() until it is removed, displaced or invalidated, at no other time.
// vma/I3  What is in the index is in its class's tree; start_table_ names some of it, and nothing else;
//     nothing at all if the module is EXACT.
// vma/I4  Unless the module is EXACT: none is contained in another of the same traits and a superset of rights, but for
//     persistent ones.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_H

#include <pinrail/component.h>

#include <atomic>

#include "base/core/status.h"
#include "base/sync/lock.h"
#include "components/rcache/vma/vma_start_table.h"
#include "components/rcache/vma/vma_tree.h"

namespace pinrail::vma {

struct Query {
  Span span;
  uint32_t rights;
  uint32_t traits;

  static Query of(uintptr_t base, size_t length, uint32_t access) {
    return {Span::of(base, length), access & PINRAIL_RIGHTS_MASK, access & PINRAIL_TRAITS_MASK};
  }
};

class Index {
 public:
  // chunks, epoch: as the host lends them (component.h).
  Index(bool exact, char* const* chunks, const uint64_t* epoch, HookLocks locks = {})
      : start_table_(chunks, epoch), exact_(exact), mutex_(LockRank::index, locks) {}

  Status begin(const pinrail_thread_t* thread, const Query& query, pinrail_registration_t** reg_out,
               uint32_t* rights_out);
  Status prepare(bool announced);
  void cancel();
  Status insert(const pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_visit_hook_t displaced, void* arg);
  Status remove(pinrail_registration_t* reg);
  void hide(pinrail_registration_t* const* regs, size_t count);
  void unhide(const pinrail_registration_t* reg);
  pinrail_registration_t* find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access) const;
  __attribute__((noinline)) pinrail_registration_t* find_elsewhere(pinrail_thread_t* thread, uintptr_t base,
                                                                   size_t length, uint32_t access) const;
  Status find_locked(const pinrail_thread_t* thread, const Query& query, pinrail_registration_t** reg_out);
  size_t find_all(const pinrail_thread_t* thread, const Span& span, pinrail_registration_t** regs_out, size_t room);
  void invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg);
  const pinrail_start_table_t* start_table() const { return exact_ ? nullptr : &start_table_.table(); }
  size_t count() const;
  size_t covered_bytes() const;
  const char* check() const;

 private:
  static constexpr uint32_t kMaxClasses = 64;  // 16 sets of rights x 4 sets of traits

  bool answers(const Tree& tree, const Query& query) const {
    if (tree.traits != query.traits) return false;
    return exact_ ? tree.rights == query.rights : (tree.rights & query.rights) == query.rights;
  }
  bool is_surely_absent(const pinrail_absent_t& absent, const Query& query) const;
  const pinrail_absent_t* was_absent(const pinrail_thread_t* thread, const pinrail_registration_t* reg) const;
  pinrail_registration_t* take_locked(const pinrail_thread_t* thread, const Query& query) REQUIRES(mutex_);
  uint32_t containing_rights(const Query& query) const REQUIRES(mutex_);
  bool take_off(Tree& tree, pinrail_registration_t* reg) REQUIRES(mutex_);
  Tree* class_of(uint32_t rights, uint32_t traits) REQUIRES(mutex_);
  bool is_dominated(const pinrail_registration_t* reg) const REQUIRES(mutex_);
  void displace(pinrail_registration_t* by, pinrail_visit_hook_t displaced, void* arg) REQUIRES(mutex_);
  void take_out(Tree& tree, const Span& span, bool contained_only, pinrail_visit_hook_t visit, void* arg)
      REQUIRES(mutex_);
  template <typename Goes>
  size_t take_leaf(Tree& tree, const Span& span, Goes&& goes, pinrail_registration_t** regs_out, bool* is_last_out)
      REQUIRES(mutex_);
  void grow_start_table() REQUIRES(mutex_);
  // relaxed: a hint for begin().
  void note_room_in_start_table() REQUIRES(mutex_) {
    start_table_has_room_.store(start_table_.has_room(), std::memory_order_relaxed);
  }
  // Under the lock; called from lambdas, which cannot say so.
  bool take_surely(const pinrail_thread_t* thread, pinrail_registration_t* reg) NO_THREAD_SAFETY_ANALYSIS;
  bool holds(const pinrail_registration_t* reg) const NO_THREAD_SAFETY_ANALYSIS;
  const char* check_domination(const Tree& own, const pinrail_registration_t* reg) const NO_THREAD_SAFETY_ANALYSIS;

  StartTable start_table_;  // changed under the index lock; first, for it begins on a line
  const bool exact_;
  std::atomic<uint32_t> classes_{0};  // readers see trees_[0, classes_)
  std::atomic<uint64_t> inserts_{1};  // counted when they are done, under the index lock
  std::atomic<uint64_t> changes_{0};  // odd while a tree changes; written under the index lock
  Tree trees_[kMaxClasses];
  // Takes the index lock, and lets an event that holds it for long know that somebody waits.
  class SCOPED_CAPABILITY Turn {
   public:
    explicit Turn(const Index& index) ACQUIRE(index.mutex_);
    ~Turn() RELEASE() { mutex_.unlock(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    HookMutex& mutex_;
  };
  void let_others_in_hook() REQUIRES(mutex_);
  // What begin() or prepare() announced is used up when the insert is over (vma_pool/P1).
  class Reservation {
   public:
    explicit Reservation(NodePool* pool) : pool_(pool) {}
    ~Reservation() { pool_->unreserve(); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    NodePool* const pool_;
  };
  // While one lives a tree changes, or has changed and not all is told: who looks without the lock takes it then.
  class Change {
   public:
    explicit Change(Index* index) : index_(index) { index_->count_change(); }
    ~Change() { index_->count_change(); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Index* const index_;
  };
  // release: the trees are as they were before, or as they are now; pairs with the acquire loads in is_clear_hook().
  void count_change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  bool is_clear_hook(const Span& span) const;

  mutable std::atomic<uint32_t> waiters_{0};
  mutable HookMutex mutex_;
  std::atomic<bool> start_table_has_room_{true};
  NodePool pool_;  // changed under the index lock, but for reservations
  size_t count_ GUARDED_BY(mutex_) = 0;
};

// One index and where it speaks.
struct Module {
  Module(const pinrail_host_t* where, bool exact)
      : host(where), index(exact, where->chunks, where->epoch, HookLocks::of(where)) {}
  const pinrail_host_t* host;
  Index index;
};

// As the C table calls it.
pinrail_registration_t* find_entry(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                                   uint32_t access);
pinrail_registration_t* find_elsewhere_entry(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                                             uint32_t access);

}  // namespace pinrail::vma

#endif
