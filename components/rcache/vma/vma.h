// SPDX-License-Identifier: BSD-3-Clause
// vma.h - the index of one pool: finds the registrations that cover a range of addresses.
//
// Owns     the entries of the index. Not the registrations (their mpool does), nor the pages (the caller does).
// Threads  all functions may run together; they take the index lock, except that an event looks without it whether
//          anything overlaps. Callers hold no lock of rank index or above.
// Context  API, except invalidate_hook(). Only find_or_announce() allocates, before it takes the lock.
// Hook     invalidate_hook() only.
//
// Registrations of equal rights and traits, all persistent or none, form a class; each class is a Tree. A registration
// is in the index from publish() until it is removed, displaced or invalidated, and at no other time. It may be dead
// before its owner removes it: then finds and domination skip it.
//
// vma/I4  Unless the module is EXACT, no registration is contained in another one of the same traits and a superset of
//     its rights, unless one of them is dead. Persistent registrations are exempt.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_H

#include "base/core/compiler.h"
#include "base/core/status.h"
#include "base/sync/lock.h"
#include "components/rcache/vma/vma_announcements.h"
#include "components/rcache/vma/vma_tree.h"

namespace pinrail::vma {

// A range, and the access that a request asks for.
struct Query {
  Span span;
  uint32_t rights;
  uint32_t traits;
  bool is_persistent = false;  // only persistent registrations answer

  static Query of(uintptr_t base, size_t length, uint32_t access) {
    return {Span::of(base, length), access & PINRAIL_RIGHTS_MASK, access & PINRAIL_TRAITS_MASK};
  }
};

class Index {
 public:
  explicit Index(bool exact, HookLocks locks = {}) : exact_(exact), mutex_(LockRank::index, locks) {}

  // These functions are the operations of pinrail_rcache_ops_t; component_rcache.h describes them. find() and
  // find_or_announce() take a reference to what they return.
  Status find(const Query& query, pinrail_registration_t** reg_out);
  Status find_or_announce(pinrail_announcement_t* announcement, pinrail_registration_t** reg_out);
  void reannounce(pinrail_announcement_t* announcement, const Span& span);
  Status withdraw(pinrail_announcement_t* announcement);
  Status publish(pinrail_announcement_t* announcement, pinrail_registration_t* reg, pinrail_visit_hook_t displaced,
                 void* arg);
  Status remove(pinrail_registration_t* reg);
  size_t visit_all(const Span& span, void (*visit)(void*, pinrail_registration_t*), void* arg);
  // Removes each registration that overlaps the span and passes it to visit_hook. Hook or API context.
  void invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg);
  // Number of registrations.
  size_t count() const;
  // Returns a reason if an invariant is broken, else NULL. For tests and debug builds.
  const char* check() const;

 private:
  static constexpr uint32_t kMaxClasses = 128;                           // 16 sets of rights x 4 of traits x 2
  static constexpr uint64_t kMarks = state::kTransient | state::kQuick;  // what a pool may ask for

  // Returns whether registrations of this tree may answer the query, by what its class has.
  bool answers(const Tree& tree, const Query& query) const {
    if (tree.traits != query.traits || (query.is_persistent && !tree.is_persistent)) return false;
    return exact_ ? tree.rights == query.rights : (tree.rights & query.rights) == query.rights;
  }
  // As Tree::peek(). What is dead is removed first: the thread that killed it removes it later, and it answers nothing.
  pinrail_registration_t* peek_locked(Tree& tree, const Span& span, bool exact) REQUIRES(mutex_);
  // Finds and takes a reference. NULL if no registration answers.
  pinrail_registration_t* find_and_take_locked(const Query& query) REQUIRES(mutex_);
  // Removes one registration from its tree. False if it is not in the index.
  bool remove_locked(Tree& tree, pinrail_registration_t* reg) REQUIRES(mutex_);
  // Returns the tree of the registration's class, which is made on first use; NULL: there is no such class.
  Tree* class_of_locked(const pinrail_registration_t* reg) REQUIRES(mutex_);
  // Returns whether the index has a registration that makes this one, of the tree's class, superfluous (vma/I4). Where
  // registrations nest that is only an equal one of the same class.
  __attribute__((noinline)) bool is_dominated_locked(const Tree& own, const pinrail_registration_t* reg)
      REQUIRES(mutex_);
  // Removes the registrations that `by` makes superfluous and passes them to `displaced`. May release the lock in
  // between: false, if it did and there may be more.
  bool remove_dominated_locked(const pinrail_registration_t* by, pinrail_visit_hook_t displaced, void* arg)
      REQUIRES(mutex_);
  // Removes registrations that overlap the span (contained_only: that it contains) and passes them to `visit`. Releases
  // the lock in between for threads that sleep for it; returns whether it did.
  bool remove_overlapping_locked_hook(Tree& tree, const Span& span, bool contained_only, pinrail_visit_hook_t visit,
                                      void* arg) REQUIRES(mutex_);
  const char* check_domination_locked(const Tree& own, const pinrail_registration_t* reg) const REQUIRES(mutex_);

  // One line, which each change writes and each event reads, up to the first tree.
  alignas(64) const bool exact_;
  std::atomic<uint32_t> classes_{0};  // readers use trees_[0, classes_)
  std::atomic<uint64_t> changes_{0};  // odd while a tree is changed; written under the index lock
  Tree trees_[kMaxClasses];
  // Releases the lock for threads that sleep for it, and takes it again; returns whether it did. Hook context.
  bool yield_locked_hook() REQUIRES(mutex_);
  // Exists while a tree is changed and until the removed registrations were passed on. A lock-free is_clear_hook() that
  // meets it makes its caller take the lock.
  class Change : NonCopyable {
   public:
    explicit Change(Index* index) : index_(index) { index_->count_change(); }
    ~Change() { index_->count_change(); }

   private:
    Index* const index_;
  };
  // release: readers see the trees either before or after the change; pairs with the acquire loads in is_clear_hook().
  void count_change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  // Returns true only if no registration overlaps the span. Reads without the lock.
  bool is_clear_hook(const Span& span) const;

  // One line, which a miss and an event write.
  alignas(64) mutable HookMutex mutex_;
  Announcements announcements_;  // changed under the index lock
  size_t count_ GUARDED_BY(mutex_) = 0;
  NodePool pool_;  // changed under the index lock
};

// An index and the host table with which its component logs.
struct Module {
  Module(const pinrail_host_t* where, bool exact) : host(where), index(exact, HookLocks::of(where)) {}
  const pinrail_host_t* host;
  Index index;
};

}  // namespace pinrail::vma

#endif
