// SPDX-License-Identifier: BSD-3-Clause
// The ways without a lock: to what starts at an address (base/hit/start_table.h), and down a tree. Each step on the way
// down looks at a node's version, reads, and looks again (vma_node.h).
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {
namespace {

// A node and the version under which it was reached. No initialisers: a search keeps a dozen and uses one or two.
struct Step {
  const Node* node;
  uint64_t version;
};

// Goes to a child; false if the node changed meanwhile.
bool step_down(Step* at, uint32_t slot) {
  const Node* child = as_inner(at->node)->child[slot].get();
  if (!at->node->unchanged(at->version)) return false;  // else child may be anything
  fetch(child);
  const uint64_t version = child->look();
  if ((version & 1) != 0 || !at->node->unchanged(at->version)) return false;
  *at = {child, version};
  return true;
}

bool start(const Word<Node*>& root, Step* at) {
  const Node* node = root.get();
  if (node == nullptr) {
    at->node = nullptr;
    return true;
  }
  const uint64_t version = node->look();
  if ((version & 1) != 0 || root.get() != node) return false;
  *at = {node, version};
  return true;
}

// The rightmost of the first `before` words that is the span's end or behind it; -1: none. If they rise, none but the
// last one can be the first to ask: what is before it ends before it.
int reaching(const Word<uintptr_t>* ends, uint32_t before, const Span& span, bool rising) {
  int slot = static_cast<int>(before) - 1;
  while (slot >= 0 && ends[slot].get() < span.end) slot = rising ? -1 : slot - 1;
  return slot;
}

// The slot of a leaf that answers the question, or -1.
int pick_exact(const Leaf* leaf, uint32_t count, const Span& span) {
  const int slot = static_cast<int>(upper_bound(leaf, 0, count, key_of(span))) - 1;
  return slot >= 0 && leaf->key(static_cast<uint32_t>(slot)) == key_of(span) ? slot : -1;
}

// Takes a reference to what stands in the slot. The registration is in the index while the leaf is unchanged, so a
// state word read in between is of this registration and of no later one that uses its memory.
Look acquire(const pinrail_thread_t* thread, const Step& at, uint32_t slot, pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg = as_leaf(at.node)->reg[slot].get();
  if (!at.node->unchanged(at.version)) return Look::disturbed;
  const uint64_t word = state::load(reg);
  if (!at.node->unchanged(at.version)) return Look::disturbed;
  // It may be claimed, or dead and about to be removed: then another slot might still answer.
  if (!references::take(thread, reg, word)) return Look::disturbed;
  *reg_out = reg;
  return Look::found;
}

// The way from the root down, kept for a containment search that ends in a leaf without an answer: the child that the
// span's base leads to also holds slots that start behind it, so its reach may promise too much. The children to the
// left of it hold only slots that start before the span: what one of them promises it keeps.
class Search {
 public:
  Search(const Span& span, bool exact, bool rising) : span_(span), exact_(exact), rising_(rising) {}

  // Walks to the leaf and slot that answer. absent, if not NULL: gets the way to where the span would stand, if it is
  // short enough.
  Look walk(const Word<Node*>& root, Step* at, int* slot, pinrail_absent_t* absent = nullptr) {
    if (!start(root, at)) return Look::disturbed;
    if (at->node == nullptr) return Look::absent;
    Look look = down(at, slot);
    if (look == Look::absent && absent != nullptr && rising_) note(*at, absent);
    if (is_over_) return look;
    while (look == Look::absent && depth_ > 0) look = turn_left(at, slot);
    return look;
  }

 private:
  // From an inner node or a leaf to the answer below it.
  Look down(Step* at, int* slot) {
    while (!is_leaf(at->node)) {
      const Inner* inner = as_inner(at->node);
      const uint32_t count = inner->count.get();
      if (count > Inner::kSlots || depth_ == kMaxDepth) return Look::disturbed;
      int next;
      if (exact_) {
        next = static_cast<int>(upper_bound(inner, 1, count, key_of(span_))) - 1;
      } else {
        place_ = upper_bound(inner->base, 1, count, span_.base);
        next = reaching(inner->reach, place_, span_, rising_);
        --place_;
      }
      is_over_ = rising_ && next < 0;
      if (next < 0) return at->node->unchanged(at->version) ? Look::absent : Look::disturbed;
      if (!exact_) way_[depth_++] = {*at, next};
      if (!step_down(at, static_cast<uint32_t>(next))) return Look::disturbed;
    }
    const uint32_t count = at->node->count.get();
    if (count > Leaf::kSlots) return Look::disturbed;
    const Leaf* leaf = as_leaf(at->node);
    if (exact_) {
      *slot = pick_exact(leaf, count, span_);
    } else {
      place_ = upper_bound(leaf->base, 0, count, span_.base);
      *slot = reaching(leaf->end, place_, span_, rising_);
    }
    if (!at->node->unchanged(at->version)) return Look::disturbed;
    is_over_ = rising_ && place_ > 0;
    return *slot >= 0 ? Look::found : Look::absent;
  }

  // Of a way that only went where the span's base leads.
  void note(const Step& last, pinrail_absent_t* absent) const {
    if (depth_ >= PINRAIL_STEPS) return;
    for (unsigned i = 0; i < depth_; ++i) {
      absent->way[i] = {way_[i].step.node, way_[i].step.version, static_cast<uint32_t>(way_[i].slot)};
    }
    absent->way[depth_] = {last.node, last.version, place_};
    absent->steps = depth_ + 1;
  }

  // The deepest node with another child that reaches far enough, and down from there.
  Look turn_left(Step* at, int* slot) {
    const Turn turn = way_[--depth_];
    const int next = reaching(as_inner(turn.step.node)->reach, static_cast<uint32_t>(turn.slot), span_, rising_);
    if (!turn.step.node->unchanged(turn.step.version)) return Look::disturbed;
    if (next < 0) return Look::absent;
    *at = turn.step;
    return step_down(at, static_cast<uint32_t>(next)) ? down(at, slot) : Look::disturbed;
  }

  static constexpr unsigned kMaxDepth = NodePool::kPerInsert;
  struct Turn {
    Step step;
    int slot;
  };

  const Span& span_;
  const bool exact_;
  const bool rising_;
  bool is_over_ = false;  // what is left of the way ends too soon
  uint32_t place_ = 0;    // of the span in the last node, without exact_
  Turn way_[kMaxDepth];
  unsigned depth_ = 0;
};

}  // namespace

inline Look Tree::find(pinrail_thread_t* thread, const Span& span, bool exact, pinrail_registration_t** reg_out) const {
  Step at;
  int slot = -1;
  const Look look = Search(span, exact, ends_rise()).walk(root_, &at, &slot, &thread->absent);
  return look == Look::found ? acquire(thread, at, static_cast<uint32_t>(slot), reg_out) : look;
}

pinrail_registration_t* Tree::peek(const Span& span, bool exact) const {
  Step at;
  int slot = -1;
  // Under the index lock nothing disturbs.
  if (Search(span, exact, ends_rise()).walk(root_, &at, &slot) != Look::found) return nullptr;
  return as_leaf(at.node)->reg[slot].get();
}

pinrail_registration_t* Index::find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access) const {
  pinrail_handle_t handle;
  if (start_table::is_start(base) &&
      start_table::take(thread, start_table_.table(), base, 0, length, access, nullptr, &handle))
    return handle.reg;
  return find_elsewhere(thread, base, length, access);
}

// A range inside a registration, or one that start_table_ does not know; claimed ones, and those counted in their state
// words. If it is sure that there is none it leaves word for begin().
__attribute__((flatten)) pinrail_registration_t* Index::find_elsewhere(pinrail_thread_t* thread, uintptr_t base,
                                                                       size_t length, uint32_t access) const {
  constexpr int kLooks = 3;
  const Query query = Query::of(base, length, access);
  bool sure = true;
  thread->absent.steps = 0;
  const uint64_t inserts = inserts_.load(std::memory_order_acquire);  // pairs with the release store in insert()
  // acquire: pairs with the release store in class_of().
  const uint32_t count = classes_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (!answers(trees_[i], query)) continue;
    pinrail_registration_t* reg = nullptr;
    Look look = Look::disturbed;
    for (int n = 0; n < kLooks && look == Look::disturbed; ++n) {
      look = trees_[i].find(thread, query.span, exact_, &reg);
    }
    if (look == Look::found) return reg;
    sure &= look == Look::absent;
  }
  pinrail_absent_t& absent = thread->absent;
  absent.index = sure ? this : nullptr;
  absent.inserts = inserts;
  absent.base = base;
  absent.length = length;
  absent.access = access;
  return nullptr;
}

pinrail_registration_t* find_entry(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                                   uint32_t access) {
  return static_cast<Module*>(module)->index.find(thread, base, length, access);
}

pinrail_registration_t* find_elsewhere_entry(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                                             uint32_t access) {
  return static_cast<Module*>(module)->index.find_elsewhere(thread, base, length, access);
}

}  // namespace pinrail::vma
