// SPDX-License-Identifier: BSD-3-Clause
// API context: find, announce, publish, remove. The caller holds the index lock in functions whose names end
// in _locked; the other functions take it themselves.
#include <sched.h>

#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

Status Index::find(const Query& query, pinrail_registration_t** reg_out) {
  Guard guard(mutex_);
  pinrail_registration_t* const reg = find_and_take_locked(query);
  if (reg == nullptr) return PINRAIL_ERR_NOT_FOUND;
  *reg_out = reg;
  return success();
}

// Searches and announces in one hold of the lock, so that nothing is inserted in between.
Status Index::find_or_announce(pinrail_announcement_t* announcement, pinrail_registration_t** reg_out) {
  Query query = Query::of(announcement->base, announcement->length, announcement->access);
  query.is_persistent = (announcement->flags & PINRAIL_FLAG_PERSISTENT) != 0;
  // Allocates without the lock, because a hook may wait for it. Without memory publish() says so, if it needs any.
  while (pool_.is_low()) {
    NodePool::Slab* const slab = NodePool::make_slab();
    if (slab == nullptr) break;
    Guard guard(mutex_);
    pool_.add(slab);
  }
  Guard guard(mutex_);
  pinrail_registration_t* const reg = find_and_take_locked(query);
  if (reg != nullptr) {
    *reg_out = reg;
    return success();
  }
  if (!announcements_.enter(announcement, exact_)) return PINRAIL_ERR_WOULD_BLOCK;
  return PINRAIL_ERR_NOT_FOUND;
}

Tree* Index::class_of_locked(const pinrail_registration_t* reg) {
  // relaxed: written only under the lock, which is held.
  const uint32_t count = classes_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (trees_[i].has_class_of(reg)) return &trees_[i];
  }
  if (count == kMaxClasses) return nullptr;
  Tree& tree = trees_[count];
  tree.rights = reg->rights;
  tree.traits = reg->traits;
  tree.is_persistent = is_persistent(reg);
  tree.nests = exact_ || tree.is_persistent;
  // release: the tree's class is set before readers see the tree; pairs with the acquire load in is_clear_hook().
  classes_.store(count + 1, std::memory_order_release);
  return &tree;
}

// Returns a registration that answers the query, with a reference, or NULL. A persistent registration ends with its
// last reference; one that is cached stays, so it does not serve in its place.
pinrail_registration_t* Index::find_and_take_locked(const Query& query) {
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    if (!answers(trees_[i], query)) continue;
    while (pinrail_registration_t* reg = peek_locked(trees_[i], query.span, exact_)) {
      if (take(reg, state::load(reg))) return reg;
      if (is_indexed(reg)) break;  // its reference count is full, so the request is a miss
    }
  }
  return nullptr;
}

// What answers in the tree, without a reference, or NULL. The dead ones that it meets leave the tree on the way.
pinrail_registration_t* Index::peek_locked(Tree& tree, const Span& span, bool exact) {
  pinrail_registration_t* reg = tree.peek(span, exact);
  while (reg != nullptr && !is_indexed(reg)) {
    remove_locked(tree, reg);
    reg = tree.peek(span, exact);
  }
  return reg;
}

// An event that comes before this has overtaken the announcement; one that comes later finds the registration.
// TEMP_OUT_OF_RESOURCE: it was overtaken. BUSY: an equal registration or one that contains it is in the index.
// BAD_PARAM: there is no such class. OUT_OF_RESOURCE: no free nodes.
Status Index::publish(pinrail_announcement_t* announcement, pinrail_registration_t* reg, pinrail_visit_hook_t displaced,
                      void* arg) {
  Guard guard(mutex_);
  Tree* const tree = class_of_locked(reg);
  if (tree == nullptr) return PINRAIL_ERR_BAD_PARAM;
  for (;;) {
    if (Announcements::take_overtaken(announcement)) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    if (!pool_.suffices()) return PINRAIL_ERR_OUT_OF_RESOURCE;
    Tree::Place place = tree->find_place(span_of(reg));
    // Usually the registration is alone, and its class is the only one. relaxed: the lock is held.
    if (!place.alone || classes_.load(std::memory_order_relaxed) != 1) {
      if (is_dominated_locked(*tree, reg)) return PINRAIL_ERR_BUSY;
      if (!remove_dominated_locked(reg, displaced, arg)) continue;
      place = tree->find_place(span_of(reg));
    }
    const Change change(this);
    tree->insert(pool_, reg, &place);
    break;
  }
  ++count_;
  state::publish(reg, state::kIndexed | (announcement->marks & kMarks));
  announcements_.leave(announcement);
  return success();
}

void Index::reannounce(pinrail_announcement_t* announcement, const Span& span) {
  Guard guard(mutex_);
  Announcements::change(announcement, span);
}

Status Index::withdraw(pinrail_announcement_t* announcement) {
  Guard guard(mutex_);
  announcements_.leave(announcement);
  return Announcements::take_overtaken(announcement) ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
}

bool Index::is_dominated_locked(const Tree& own, const pinrail_registration_t* reg) {
  const Query query{span_of(reg), reg->rights, reg->traits};
  const auto may_dominate = [&](const Tree& tree) {
    if (!own.nests) return answers(tree, query);
    return tree.is_persistent == own.is_persistent && tree.rights == own.rights && tree.traits == own.traits;
  };
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    if (may_dominate(trees_[i]) && peek_locked(trees_[i], query.span, own.nests) != nullptr) return true;
  }
  return false;
}

bool Index::remove_dominated_locked(const pinrail_registration_t* by, pinrail_visit_hook_t displaced, void* arg) {
  if (exact_) return true;
  bool is_whole = true;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count && is_whole; ++i) {
    Tree& tree = trees_[i];
    if (tree.is_persistent || tree.traits != by->traits || (by->rights & tree.rights) != tree.rights) continue;
    is_whole = !remove_overlapping_locked_hook(tree, span_of(by), true, displaced, arg);
  }
  return is_whole;
}

// Takes the index lock. NOT_FOUND: the registration is not in the index. The caller needs no reference.
Status Index::remove(pinrail_registration_t* reg) {
  Guard guard(mutex_);
  Tree* const tree = class_of_locked(reg);
  return tree != nullptr && remove_locked(*tree, reg) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

// Takes the index lock, and calls visit under it. Returns how many registrations overlap the span.
size_t Index::visit_all(const Span& span, void (*visit)(void*, pinrail_registration_t*), void* arg) {
  Guard guard(mutex_);
  size_t found = 0;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    trees_[i].for_overlaps(span, [&](pinrail_registration_t* reg) {
      visit(arg, reg);
      ++found;
      return true;
    });
  }
  return found;
}

size_t Index::count() const {
  Guard guard(mutex_);
  return count_;
}

// Takes the index lock. Returns a reason if an invariant is broken, else NULL.
const char* Index::check() const {
  Guard guard(mutex_);
  const char* why = nullptr;
  size_t slots = 0;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count && why == nullptr; ++i) {
    why = trees_[i].check();
    if (why != nullptr) break;
    trees_[i].for_overlaps({0, UINTPTR_MAX}, [&](pinrail_registration_t* reg) {
      assert_held(mutex_, LockRank::index);
      ++slots;
      if (!trees_[i].has_class_of(reg)) why = "a registration is in a wrong class";
      if (why == nullptr) why = check_domination_locked(trees_[i], reg);
      return why == nullptr;
    });
  }
  if (why == nullptr && slots != count_) return "the count of registrations is wrong";
  return why;
}

// Checks vma/I4 for one registration: no other one contains it.
const char* Index::check_domination_locked(const Tree& own, const pinrail_registration_t* reg) const {
  if (own.nests || !is_indexed(reg)) return nullptr;
  const char* why = nullptr;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count && why == nullptr; ++i) {
    const Tree& tree = trees_[i];
    if (tree.traits != own.traits || (tree.rights & own.rights) != own.rights) continue;
    tree.for_overlaps(span_of(reg), [&](pinrail_registration_t* other) {
      if (other != reg && is_indexed(other) && span_of(other).contains(span_of(reg)))
        why = "a registration is contained in another";
      return why == nullptr;
    });
  }
  return why;
}

// Removes what a range covers. Hook context: nothing here allocates or frees. Callers hold the index lock in functions
// whose names end in _locked or _locked_hook.

// The index lock is held. Removes one registration from its tree. False if it is not in the index.
bool Index::remove_locked(Tree& tree, pinrail_registration_t* reg) {
  const Change change(this);
  if (!tree.remove(pool_, reg)) return false;
  --count_;
  return true;
}

// Works leaf by leaf; visits after each leaf.
bool Index::remove_overlapping_locked_hook(Tree& tree, const Span& span, bool contained_only,
                                           pinrail_visit_hook_t visit, void* arg) {
  bool has_yielded = false;
  for (bool is_last = false; !is_last;) {
    pinrail_registration_t* regs[Node::kSlots];
    {
      // The change lasts until the registrations were visited. Otherwise another event could find the index clear and
      // return before they are dead.
      const Change change(this);
      const Tree::RemovedFromLeaf taken = tree.remove_from_leaf(pool_, span, contained_only, regs);
      if (taken.count == 0) break;
      is_last = taken.is_last;
      count_ -= taken.count;
      visit(arg, regs, taken.count);
    }
    if (!is_last && yield_locked_hook()) has_yielded = true;
  }
  return has_yielded;
}

// Called between two leaves of a large event or displacement, which may take milliseconds: a miss need not wait for all
// of it. A registration that is inserted meanwhile was requested after the event began: the calls that were under way
// then are overtaken and do not insert. Returns whether it gave the lock up: then what was read before is out of date.
bool Index::yield_locked_hook() {
  constexpr int kPatience = 100;
  if (!mutex_.is_awaited()) return false;
  mutex_.unlock();
  // An unlocked mutex goes to a running thread, which would be this one, and not to one that is still waking up.
  for (int i = 0; i < kPatience && mutex_.is_free(); ++i) sched_yield();
  mutex_.lock();
  return true;
}

// Most freed memory has no registrations, so the hook usually needs no lock.
bool Index::is_clear_hook(const Span& span) const {
  const uint64_t before = changes_.load(std::memory_order_acquire);
  const auto unchanged = [&] { return changes_.load(std::memory_order_acquire) == before; };
  if ((before & 1) != 0) return false;
  // acquire: pairs with the release store in class_of_locked().
  const uint32_t count = classes_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (!trees_[i].is_clear_of(span, unchanged)) return false;
  }
  return unchanged();
}

// Hook or API context. Overtakes the calls under way, then removes each registration that overlaps the span and passes
// it to visit_hook, which marks it dead, with the index lock held. Takes no lock if nothing overlaps and no call is
// under way. The caller has passed a full barrier (vma_announcements/W2).
void Index::invalidate_hook(const Span& span, pinrail_visit_hook_t visit_hook, void* arg) {
  if (span.base >= span.end) return;  // an empty one at the top would be sought among unused slots (vma_node/N4)
  if (announcements_.is_empty_hook() && is_clear_hook(span)) return;
  Guard guard(mutex_);
  announcements_.overtake_hook(span);
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) remove_overlapping_locked_hook(trees_[i], span, false, visit_hook, arg);
}

}  // namespace pinrail::vma
