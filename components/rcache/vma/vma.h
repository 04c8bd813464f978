// SPDX-License-Identifier: BSD-3-Clause
// vma.h - the index of one pool: finds the registrations that cover a range of addresses.
//
// Owns     the entries of the index. Not the registrations (their mpool does), nor the pages (the caller does).
// Threads  "-" may run together, "X" exclude each other by the index lock:
//                            find  insert  remove  invalidate_hook
//          find               -     -       -       -
//          insert             -     X       X       X
//          remove             -     X       X       X
//          invalidate_hook    -     X       X       X
//          prepare, publish, withdraw, find_under_lock, hide, unhide, find_all, count,
//          covered_bytes and check: as insert. find_or_announce: as insert, unless the thread's last find was sure that
//          the range is absent and no call is announced; then as find.
// Locks    Functions that exclude each other take the index lock; callers hold no lock of rank index or above.
// Context  API, except invalidate_hook(). No function allocates with the lock held.
// Hook     invalidate_hook() only.
//
// vma/I1  Registrations of equal rights and traits form a class; each class is a Tree. There are at most 64 classes.
// vma/I2  A registration is in the index from insert() until it is removed, displaced or invalidated, and at no other
//     time.
// vma/I3  Every registration of the index is in its class's tree. start_table_ names some of them and no others; it is
//     empty if the module is EXACT.
// vma/I4  Unless the module is EXACT, no registration is contained in another one of the same traits and a superset of
//     its rights. Persistent registrations are exempt.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_H

#include <pinrail/component_rcache.h>

#include <atomic>

#include "base/core/status.h"
#include "base/sync/lock.h"
#include "components/rcache/vma/vma_announcements.h"
#include "components/rcache/vma/vma_start_table.h"
#include "components/rcache/vma/vma_tree.h"

namespace pinrail::vma {

// A range, and the access that a request asks for.
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
  // chunks, epoch: host services of these names (component.h). The index begins an epoch, whose number names it in the
  // notes of threads: no index of this process has had it, also if this one is made where another one was destroyed, or
  // by a component that was loaded again. most_changes: as the start table has it.
  Index(bool exact, char* const* chunks, uint64_t* epoch, HookLocks locks = {},
        uint64_t most_changes = StartTable::kMostChanges)
      : start_table_(chunks, epoch, most_changes),
        exact_(exact),
        mutex_(LockRank::index, locks),
        number_(epoch::move_on(epoch)) {}

  // These functions are the operations of pinrail_rcache_ops_t; component.h describes them. find(),
  // find_without_start_table(), find_or_announce(), find_under_lock() and find_all() take a reference to what they
  // return.
  Status find_or_announce(const pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                          pinrail_registration_t** reg_out);
  Status prepare();
  Status withdraw(pinrail_announcement_t* announcement);
  // leaving: a dead registration that is removed in the same hold of the lock, also if this does not return SUCCESS; or
  // NULL.
  Status publish(const pinrail_thread_t* thread, pinrail_announcement_t* announcement, pinrail_registration_t* reg,
                 pinrail_visit_hook_t displaced, void* arg, pinrail_registration_t* leaving = nullptr);
  // As publish(), of what was not announced.
  Status insert(const pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_visit_hook_t displaced, void* arg);
  Status remove(pinrail_registration_t* reg);
  void hide(pinrail_registration_t* const* regs, size_t count);
  void unhide(const pinrail_registration_t* reg);
  pinrail_registration_t* find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access) const;
  __attribute__((noinline)) pinrail_registration_t* find_without_start_table(pinrail_thread_t* thread, uintptr_t base,
                                                                             size_t length, uint32_t access) const;
  Status find_under_lock(const pinrail_thread_t* thread, const Query& query, pinrail_registration_t** reg_out);
  size_t find_all(const pinrail_thread_t* thread, const Span& span, pinrail_registration_t** regs_out, size_t room);
  // Removes each registration that overlaps the span and passes it to visit_hook. Hook or API context.
  void invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg);
  const pinrail_start_table_t* start_table() const { return exact_ ? nullptr : &start_table_.table(); }
  // The same, for a pool that answers hits by it, before the first insert. From now on inserts leave notes.
  const pinrail_start_table_t* lend_start_table() {
    start_table_.lend();
    return start_table();
  }
  // Whether all that threads remember of the start table is to be forgotten now (vma_start_table/S5); true once. Asked
  // before prepare(), which is called then, as when there is no room.
  bool takes_renewal();
  // Number of registrations, and bytes that at least one of them covers. covered_bytes() may throw bad_alloc.
  size_t count() const;
  size_t covered_bytes() const;
  // Returns a reason if an invariant is broken, else NULL. For tests and debug builds.
  const char* check() const;

 private:
  static constexpr uint32_t kMaxClasses = 64;  // 16 sets of rights x 4 sets of traits

  // Returns whether registrations of this tree may answer the query, by rights and traits.
  bool answers(const Tree& tree, const Query& query) const {
    if (tree.traits != query.traits) return false;
    return exact_ ? tree.rights == query.rights : (tree.rights & query.rights) == query.rights;
  }
  // Returns whether the thread's last find has shown that no registration can answer, and nothing has changed since.
  bool is_known_absent(const pinrail_absent_t& absent, const Query& query) const;
  // Returns the thread's note of a find of the registration's range that found nothing, or NULL.
  const pinrail_absent_t* absence_noted(const pinrail_thread_t* thread, const pinrail_registration_t* reg) const;
  Status insert_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_visit_hook_t displaced,
                       void* arg) REQUIRES(mutex_);
  // As Tree::peek(). What is dead is removed first: the thread that killed it removes it later, and it answers nothing.
  pinrail_registration_t* peek_locked(Tree& tree, const Span& span, bool exact) REQUIRES(mutex_);
  __attribute__((noinline)) pinrail_registration_t* peek_flagged_locked(const Tree& tree, const Span& span,
                                                                        uint32_t flags) const REQUIRES(mutex_);
  // Removes the registration from its class. False if it is not in the index.
  bool remove_from_class_locked(pinrail_registration_t* reg) REQUIRES(mutex_);
  // Finds and takes a reference. NULL if no registration answers.
  __attribute__((noinline)) pinrail_registration_t* find_and_take_locked(const pinrail_thread_t* thread,
                                                                         const Query& query, uint32_t flags = 0)
      REQUIRES(mutex_);
  // Returns the rights of all registrations of equal traits that contain the range (R4).
  __attribute__((noinline)) uint32_t containing_rights_locked(const Query& query) REQUIRES(mutex_);
  // Removes one registration from its tree and from the start table. False if it is not in the index.
  bool remove_locked(Tree& tree, pinrail_registration_t* reg) REQUIRES(mutex_);
  // Returns the class's tree, which is made on first use; NULL if there are 64 others.
  Tree* class_of_locked(uint32_t rights, uint32_t traits) REQUIRES(mutex_);
  // Returns whether the index has a registration that makes this one superfluous (vma/I4).
  __attribute__((noinline)) bool is_dominated_locked(const pinrail_registration_t* reg) REQUIRES(mutex_);
  // Removes the registrations that `by` makes superfluous and passes them to `displaced`.
  __attribute__((noinline)) void remove_dominated_locked(pinrail_registration_t* by, pinrail_visit_hook_t displaced,
                                                         void* arg) REQUIRES(mutex_);
  // The leaf in which a search without the lock found an overlap, in trees_[tree]; changes: changes_ at that time.
  struct Finding {
    uint64_t changes;
    uint32_t tree;
    const Leaf* leaf;  // NULL: there was no search, or it was disturbed
  };
  // Removes registrations that overlap the span (contained_only: that it contains) and passes them to `visit`.
  void remove_overlapping_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg, const Finding& finding)
      EXCLUDES(mutex_);
  void remove_overlapping_locked_hook(Tree& tree, const Span& span, bool contained_only, pinrail_visit_hook_t visit,
                                      void* arg, Leaf* found = nullptr) REQUIRES(mutex_);
  template <typename Matches>
  size_t remove_from_leaf_locked_hook(Tree& tree, const Span& span, Matches&& matches,
                                      pinrail_registration_t** regs_out, bool* is_last_out, Leaf* found)
      REQUIRES(mutex_);
  // Makes room in the start table. Releases the lock meanwhile.
  void grow_start_table_locked() REQUIRES(mutex_);
  // relaxed: a hint for find_or_announce().
  void note_room_in_start_table_locked() REQUIRES(mutex_) {
    start_table_is_ready_.store(start_table_.has_room() && !start_table_.is_worn(), std::memory_order_relaxed);
  }
  // Takes a reference, by revoking a claim if need be. False if the registration is dead or its count is full.
  bool take_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) REQUIRES(mutex_);
  bool contains_locked(const pinrail_registration_t* reg) const REQUIRES(mutex_);
  const char* check_domination_locked(const Tree& own, const pinrail_registration_t* reg) const REQUIRES(mutex_);

  StartTable start_table_;  // changed under the index lock
  // One line, which each change writes and each search without the lock reads, up to the first tree.
  alignas(64) const bool exact_;
  std::atomic<uint32_t> classes_{0};  // readers use trees_[0, classes_)
  std::atomic<uint64_t> inserts_{1};  // incremented after each insert, under the index lock
  std::atomic<uint64_t> changes_{0};  // odd while a tree is changed; written under the index lock
  Tree trees_[kMaxClasses];
  // Releases the lock for threads that sleep for it, and takes it again. Hook context.
  void yield_locked_hook() REQUIRES(mutex_);
  // Exists while a tree is changed and until the removed registrations were passed on. A lock-free is_clear_hook() that
  // meets it makes its caller take the lock.
  class Change {
   public:
    explicit Change(Index* index) : index_(index) { index_->count_change(); }
    ~Change() { index_->count_change(); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Index* const index_;
  };
  // release: readers see the trees either before or after the change; pairs with the acquire loads in is_clear_hook().
  void count_change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  // Returns true only if no registration overlaps the span. Reads without the lock. finding_out: where one was found.
  bool is_clear_hook(const Span& span, Finding* finding_out) const;

  // One line, which a miss and an event write.
  alignas(64) mutable HookMutex mutex_;
  Announcements announcements_;  // changed under the index lock, except that the first one enters without it
  size_t count_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> start_table_is_ready_{true};
  NodePool pool_;          // changed under the index lock
  const uint64_t number_;  // see the constructor
};

// An index and the host table with which its component logs.
struct Module {
  Module(const pinrail_host_t* where, bool exact)
      : host(where), index(exact, shortcut::of(where)->chunks, shortcut::of(where)->epoch, HookLocks::of(where)) {}
  const pinrail_host_t* host;
  Index index;
};

// The operations find and find_without_start_table of pinrail_rcache_ops_t.
pinrail_registration_t* find_entry(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                                   uint32_t access);
pinrail_registration_t* find_without_start_table_entry(void* module, pinrail_thread_t* thread, uintptr_t base,
                                                       size_t length, uint32_t access);

}  // namespace pinrail::vma

#endif
