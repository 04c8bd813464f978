// SPDX-License-Identifier: BSD-3-Clause
// API context: announce, prepare, insert, remove, and the finds that take the lock.
//
// The caller holds the index lock in functions whose names end in _locked. The other functions take it themselves, if
// they need it; absence_noted() and is_known_absent() do not.
#include <new>
#include <vector>

#include "base/sync/assert_held.h"
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

// Announces first and searches afterwards, so that what another call inserted meanwhile is found. Usually the thread's
// find was sure and nothing was inserted since; then it does not search again, and if no call is under way it needs no
// lock.
__attribute__((flatten)) Status Index::find_or_announce(const pinrail_thread_t* thread,
                                                        pinrail_announcement_t* announcement,
                                                        pinrail_registration_t** reg_out) {
  const Query query = Query::of(announcement->base, announcement->length, announcement->access);
  announcement->more_rights = 0;
  const bool is_first = announcements_.enter_alone(announcement);
  if (!is_first || !is_known_absent(thread->absent, query)) {
    Guard guard(mutex_);
    // While other calls are under way: nothing is inserted between this question and the announcement.
    if (!is_known_absent(thread->absent, query)) {
      pinrail_registration_t* reg = find_and_take_locked(thread, query, announcement->flags);
      if (reg != nullptr) {
        if (is_first) announcements_.leave(announcement);
        *reg_out = reg;
        return success();
      }
      if (!exact_) announcement->more_rights = containing_rights_locked(query);
    }
    if (!is_first && !announcements_.enter(announcement, exact_)) return PINRAIL_ERR_WOULD_BLOCK;
  }
  // relaxed: a hint; a table without room takes no more entries.
  const bool is_ready = start_table_is_ready_.load(std::memory_order_relaxed);
  return is_ready && !pool_.is_low() ? PINRAIL_ERR_NOT_FOUND : PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

// The thread has searched without the lock, and nothing was inserted since.
bool Index::is_known_absent(const pinrail_absent_t& absent, const Query& query) const {
  if (absent.index != number_ || absent.base != query.span.base || absent.length != query.span.length() ||
      absent.access != (query.rights | query.traits))
    return false;
  // acquire: pairs with the release store in insert_locked().
  return absent.inserts == inserts_.load(std::memory_order_acquire);
}

// Provides the memory for some inserts. Allocates without the lock, because a hook may be waiting for it.
Status Index::prepare() {
  mutex_.lock();
  if (!start_table_.has_room()) grow_start_table_locked();
  while (pool_.is_low()) {
    mutex_.unlock();
    NodePool::Slab* slab = NodePool::make_slab();
    if (slab == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
    mutex_.lock();
    pool_.add(slab);
  }
  mutex_.unlock();
  return success();
}

bool Index::takes_renewal() {
  if (start_table_is_ready_.load(std::memory_order_relaxed)) return false;  // relaxed: a hint
  Guard guard(mutex_);
  if (!start_table_.is_worn()) return false;
  start_table_.note_renewal();
  note_room_in_start_table_locked();
  return true;
}

// Allocates without the lock. If there is no memory the table does not grow, and some finds are slower.
void Index::grow_start_table_locked() {
  const size_t room = start_table_.room();
  mutex_.unlock();
  const bool made = start_table_.make_memory_usable(room);
  mutex_.lock();
  if (made) start_table_.note_memory(room);
  note_room_in_start_table_locked();
}

Tree* Index::class_of_locked(uint32_t rights, uint32_t traits) {
  // relaxed: written only under the lock, which is held.
  const uint32_t count = classes_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (trees_[i].rights == rights && trees_[i].traits == traits) return &trees_[i];
  }
  if (count == kMaxClasses) return nullptr;
  trees_[count].rights = rights;
  trees_[count].traits = traits;
  trees_[count].is_exact = exact_;
  // release: the tree's class is set before readers see the tree; pairs with the acquire load in find().
  classes_.store(count + 1, std::memory_order_release);
  return &trees_[count];
}

// Takes a claimed one, too, by revoking the claim. Then it puts the registration back into the start table.
bool Index::take_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const uint64_t word = state::load(reg);
  if (references::take(thread, reg, word)) return true;
  if (!references::take_revoking_claim(thread, reg, word)) return false;
  if (!exact_) start_table_.show(reg);
  return true;
}

// The index lock is held. Returns a registration that answers the query and has the flags, with a reference, or NULL. A
// persistent registration ends with its last reference; one that is cached stays, so it does not serve in its place,
// though it may hide a persistent one.
pinrail_registration_t* Index::find_and_take_locked(const pinrail_thread_t* thread, const Query& query,
                                                    uint32_t flags) {
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    if (!answers(trees_[i], query)) continue;
    while (pinrail_registration_t* reg = peek_locked(trees_[i], query.span, exact_)) {
      if ((flags & ~reg->flags) != 0) reg = peek_flagged_locked(trees_[i], query.span, flags);
      if (reg == nullptr) break;
      if (take_locked(thread, reg)) return reg;
      if ((state::load(reg) & state::kIndexed) != 0) break;  // its reference count is full, so the request is a miss
    }
  }
  return nullptr;
}

// As peek_locked(), of those with the flags alone; it looks at all that overlap the span.
pinrail_registration_t* Index::peek_flagged_locked(const Tree& tree, const Span& span, uint32_t flags) const {
  pinrail_registration_t* found = nullptr;
  tree.for_overlaps(span, [&](pinrail_registration_t* reg) {
    const bool answers = exact_ ? key_of(span_of(reg)) == key_of(span) : span_of(reg).contains(span);
    if (answers && (flags & ~reg->flags) == 0 && (state::load(reg) & state::kIndexed) != 0) found = reg;
    return found == nullptr;
  });
  return found;
}

pinrail_registration_t* Index::peek_locked(Tree& tree, const Span& span, bool exact) {
  pinrail_registration_t* reg = tree.peek(span, exact);
  while (reg != nullptr && (state::load(reg) & state::kIndexed) == 0) {
    remove_locked(tree, reg);
    reg = tree.peek(span, exact);
  }
  return reg;
}

// Takes the index lock and searches. *reg_out is referenced. NOT_FOUND: no registration answers.
Status Index::find_under_lock(const pinrail_thread_t* thread, const Query& query, pinrail_registration_t** reg_out) {
  Guard guard(mutex_);
  pinrail_registration_t* reg = find_and_take_locked(thread, query);
  if (reg == nullptr) return PINRAIL_ERR_NOT_FOUND;
  *reg_out = reg;
  return success();
}

// The index lock is held. Returns the rights of all registrations of equal traits that contain the range (R4).
uint32_t Index::containing_rights_locked(const Query& query) {
  uint32_t rights = 0;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    Tree& tree = trees_[i];
    const bool adds = tree.traits == query.traits && (tree.rights & ~(rights | query.rights)) != 0;
    if (adds && peek_locked(tree, query.span, exact_) != nullptr) rights |= tree.rights;
  }
  return rights;
}

// An event that comes before this search has overtaken the announcement; one that comes later finds the registration.
// Removes after it has inserted, because the path that the thread's find noted is valid until the tree changes.
__attribute__((flatten)) Status Index::publish(const pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                               pinrail_registration_t* reg, pinrail_visit_hook_t displaced, void* arg,
                                               pinrail_registration_t* leaving) {
  Guard guard(mutex_);
  Status published = PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  if (!Announcements::take_overtaken(announcement)) {
    published = insert_locked(thread, reg, displaced, arg);
    if (published.ok()) announcements_.leave(announcement);
  }
  if (leaving != nullptr) remove_from_class_locked(leaving);
  return published;
}

Status Index::withdraw(pinrail_announcement_t* announcement) {
  Guard guard(mutex_);
  announcements_.leave(announcement);
  return Announcements::take_overtaken(announcement) ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
}

Status Index::insert(const pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_visit_hook_t displaced,
                     void* arg) {
  Guard guard(mutex_);
  return insert_locked(thread, reg, displaced, arg);
}

// Registrations that this one makes superfluous are removed and passed to `displaced`. BUSY: an equal registration or
// one that contains it is in the index. BAD_PARAM: there are too many classes. OUT_OF_RESOURCE: no free nodes.
Status Index::insert_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_visit_hook_t displaced,
                            void* arg) {
  if (!pool_.suffices()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Tree* tree = class_of_locked(reg->rights, reg->traits);
  if (tree == nullptr) return PINRAIL_ERR_BAD_PARAM;
  Tree::Place place = tree->find_place(span_of(reg), absence_noted(thread, reg));
  // relaxed: the lock is held. Usually the registration is alone and its class is the only one.
  const bool alone = place.alone && classes_.load(std::memory_order_relaxed) == 1;
  if (!alone) {
    if (is_dominated_locked(reg)) return PINRAIL_ERR_BUSY;
    remove_dominated_locked(reg, displaced, arg);
    place = tree->find_place(span_of(reg));
  }
  {
    const Change change(this);
    if (!tree->insert(pool_, reg, &place)) return PINRAIL_ERR_BUSY;
  }
  if (!exact_) start_table_.insert(thread, reg);
  note_room_in_start_table_locked();
  ++count_;
  // relaxed load: written under the lock only. release: a thread that sees the new number finds the inserted
  // registration; pairs with the acquire loads in find_without_start_table() and is_known_absent().
  inserts_.store(inserts_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return success();
}

const pinrail_absent_t* Index::absence_noted(const pinrail_thread_t* thread, const pinrail_registration_t* reg) const {
  if (thread == nullptr) return nullptr;
  const pinrail_absent_t& absent = thread->absent;
  const bool same = absent.index == number_ && absent.base == span_of(reg).base && absent.length == reg->length;
  return same ? &absent : nullptr;
}

// An equal registration counts, unless it is not persistent and this one is: then it is displaced. A containing one
// does not count if the module is EXACT or the registration is persistent.
bool Index::is_dominated_locked(const pinrail_registration_t* reg) {
  const bool exempt = exact_ || is_exempt(reg);
  const Query query{span_of(reg), reg->rights, reg->traits};
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    Tree& tree = trees_[i];
    if (exempt ? tree.rights != reg->rights || tree.traits != reg->traits : !answers(tree, query)) continue;
    const pinrail_registration_t* const other = peek_locked(tree, query.span, exempt);
    if (other != nullptr && (exact_ || !is_exempt(reg) || is_exempt(other))) return true;
  }
  return false;
}

// The index lock is held. Removes the registrations that `by` makes superfluous and passes them to `displaced`.
void Index::remove_dominated_locked(pinrail_registration_t* by, pinrail_visit_hook_t displaced, void* arg) {
  if (exact_) return;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    Tree& tree = trees_[i];
    if (tree.traits == by->traits && (by->rights & tree.rights) == tree.rights) {
      remove_overlapping_locked_hook(tree, span_of(by), true, displaced, arg);
    }
  }
}

// Takes the index lock. NOT_FOUND: the registration is not in the index. The caller needs no reference.
Status Index::remove(pinrail_registration_t* reg) {
  Guard guard(mutex_);
  return remove_from_class_locked(reg) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

bool Index::remove_from_class_locked(pinrail_registration_t* reg) {
  Tree* tree = class_of_locked(reg->rights, reg->traits);
  return tree != nullptr && remove_locked(*tree, reg);
}

// Keeps start_table/S1.
void Index::hide(pinrail_registration_t* const* regs, size_t count) {
  if (exact_) return;
  Guard guard(mutex_);
  for (size_t i = 0; i < count; ++i) start_table_.hide(regs[i]);
}

// Puts a registration that is no longer claimed back into the start table. Takes the index lock.
void Index::unhide(const pinrail_registration_t* reg) {
  if (exact_) return;
  Guard guard(mutex_);
  if (contains_locked(reg)) start_table_.show(reg);  // it may not be inserted yet, or already be removed
}

// Takes the index lock. Returns how many registrations overlap the span; the first `room` of them of which a reference
// can be taken are written to regs_out, each with a reference that the caller must drop.
size_t Index::find_all(const pinrail_thread_t* thread, const Span& span, pinrail_registration_t** regs_out,
                       size_t room) {
  Guard guard(mutex_);
  size_t found = 0;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    trees_[i].for_overlaps(span, [&](pinrail_registration_t* reg) {
      assert_held(mutex_, LockRank::index);
      if (found < room && !take_locked(thread, reg)) return true;
      if (found < room) regs_out[found] = reg;
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

// Takes the index lock to copy the spans; allocates without it. May throw bad_alloc.
size_t Index::covered_bytes() const {
  const Span everything{0, UINTPTR_MAX};
  std::vector<Span> spans;
  size_t expected = count();
  for (bool whole = false; !whole; expected *= 2) {
    spans.clear();
    spans.reserve(expected + 64);  // without the lock, so more may be inserted meanwhile
    Guard guard(mutex_);
    whole = count_ <= spans.capacity();
    const uint32_t classes = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
    for (uint32_t i = 0; whole && i < classes; ++i) {
      trees_[i].for_overlaps(everything, [&](pinrail_registration_t* reg) {
        spans.push_back(span_of(reg));
        return true;
      });
    }
  }
  return union_length(&spans);
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
      if (reg->rights != trees_[i].rights || reg->traits != trees_[i].traits)
        why = "a registration is in a wrong class";
      if (why == nullptr) why = check_domination_locked(trees_[i], reg);
      return why == nullptr;
    });
  }
  if (why == nullptr && slots != count_) return "the count of registrations is wrong";
  if (why != nullptr) return why;
  return start_table_.check([&](const pinrail_registration_t* reg) {
    assert_held(mutex_, LockRank::index);
    return contains_locked(reg);
  });
}

// The index lock is held. Returns whether this registration is in the index.
bool Index::contains_locked(const pinrail_registration_t* reg) const {
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count; ++i) {
    const Tree& tree = trees_[i];
    if (tree.rights == reg->rights && tree.traits == reg->traits) return tree.peek(span_of(reg), true) == reg;
  }
  return false;
}

// Checks vma/I4 for one registration: no other one contains it.
const char* Index::check_domination_locked(const Tree& own, const pinrail_registration_t* reg) const {
  if (exact_ || is_exempt(reg)) return nullptr;
  const char* why = nullptr;
  const uint32_t count = classes_.load(std::memory_order_relaxed);  // relaxed: the lock is held
  for (uint32_t i = 0; i < count && why == nullptr; ++i) {
    const Tree& tree = trees_[i];
    if (tree.traits != own.traits || (tree.rights & own.rights) != own.rights) continue;
    tree.for_overlaps(span_of(reg), [&](pinrail_registration_t* other) {
      if (other != reg && span_of(other).contains(span_of(reg))) why = "a registration is contained in another";
      return why == nullptr;
    });
  }
  return why;
}

}  // namespace pinrail::vma
