// SPDX-License-Identifier: BSD-3-Clause
// Finds without a lock: in the start table (base/hit/start_table.h) and down a tree. Each step down reads a node's
// seqlock version, the fields, and the version again (vma_node.h).
//
// API context. Only peek() needs the index lock, which its caller holds. Tree::find(), Index::find() and
// find_without_start_table() take a reference to what they return; peek() does not.
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {
namespace {

// A node, and the version that it had when it was reached. Members have no initialisers, because a search has a dozen
// of these and uses one or two.
struct VersionedNode {
  const Node* node;
  uint64_t version;
};

// Moves `at` to a child. False if the node has changed since `at->version` was read.
bool load_child(VersionedNode* at, uint32_t slot) {
  const Node* child = as_inner(at->node)->child[slot].get();
  if (!at->node->unchanged(at->version)) return false;  // otherwise child may be any value
  fetch(child);
  const uint64_t version = child->load_version();
  if ((version & 1) != 0 || !at->node->unchanged(at->version)) return false;
  *at = {child, version};
  return true;
}

// Sets `at` to the root; at->node is NULL if the tree is empty. False if the tree is being changed.
bool load_root(const Word<Node*>& root, VersionedNode* at) {
  const Node* node = root.get();
  if (node == nullptr) {
    at->node = nullptr;
    return true;
  }
  const uint64_t version = node->load_version();
  if ((version & 1) != 0 || root.get() != node) return false;
  *at = {node, version};
  return true;
}

// Returns the rightmost of the first `before` slots whose end (or reach) is at or behind span.end; -1: none.
int rightmost_reaching(const Word<uintptr_t>* ends, uint32_t before, const Span& span) {
  int slot = static_cast<int>(before) - 1;
  while (slot >= 0 && ends[slot].get() < span.end) --slot;
  return slot;
}

// Returns the slot of a leaf whose range equals the span, or -1.
int find_equal(const Leaf* leaf, const Span& span) {
  const int slot = static_cast<int>(keys_up_to(leaf, key_of(span))) - 1;
  return slot >= 0 && leaf->key(static_cast<uint32_t>(slot)) == key_of(span) ? slot : -1;
}

// Takes a reference to the registration in the slot. The registration is in the index while the leaf is unchanged. So a
// state word that is read in between belongs to this registration and not to a later one in the same memory.
SearchResult acquire(const pinrail_thread_t* thread, const VersionedNode& at, uint32_t slot,
                     pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg = as_leaf(at.node)->reg[slot].get();
  if (!at.node->unchanged(at.version)) return SearchResult::disturbed;
  const uint64_t word = state::load(reg);
  if (!at.node->unchanged(at.version)) return SearchResult::disturbed;
  // The registration may be claimed by the evictor, or dead and not yet removed; another slot might still answer.
  if (!references::take(thread, reg, word)) return SearchResult::disturbed;
  *reg_out = reg;
  return SearchResult::found;
}

// Goes on with search_rising() to the left of the path that ends with `step`, in whose leaf all slots begin behind the
// span: the slot before these is the last one below the nearest child to the left.
SearchResult search_before(const Span& span, const pinrail_step_t* path, const pinrail_step_t* step, VersionedNode* at,
                           int* slot) {
  do {
    if (step == path) return SearchResult::absent;
    --step;
  } while (step->slot == 0);
  *at = {static_cast<const Node*>(step->node), step->version};
  for (uint32_t next = step->slot - 1;;) {
    if (as_inner(at->node)->reach[next].get() < span.end) {
      return at->node->unchanged(at->version) ? SearchResult::absent : SearchResult::disturbed;
    }
    if (!load_child(at, next)) return SearchResult::disturbed;
    if (is_leaf(at->node)) break;
    next = bases_up_to(as_inner(at->node), span.base) - 1;
  }
  *slot = static_cast<int>(bases_up_to(as_leaf(at->node), span.base)) - 1;
  const bool contains = *slot >= 0 && as_leaf(at->node)->end[*slot].get() >= span.end;
  if (!at->node->unchanged(at->version)) return SearchResult::disturbed;
  return contains ? SearchResult::found : SearchResult::absent;
}

// A containment search where ends rise (vma_tree/T2): of the slots that begin at or before the span's base only the
// last one needs to be tested. path: room for NodePool::kPerInsert steps; gets the way to where the span would be
// inserted. steps_out: how many these are, if the search found nothing; 0: a separator begins where the span does, so
// that its place depends on ends.
SearchResult search_rising(const Word<Node*>& root, const Span& span, pinrail_step_t* path, uint32_t* steps_out,
                           VersionedNode* at, int* slot) {
  *steps_out = 0;
  if (!load_root(root, at)) return SearchResult::disturbed;
  if (at->node == nullptr) return SearchResult::absent;
  static_assert(kPinrailSteps == NodePool::kPerInsert, "each node of the deepest tree");
  pinrail_step_t* step = path;
  bool may_contain = true, is_sure_of_place = true;
  while (!is_leaf(at->node)) {
    if (step + 1 == path + kPinrailSteps) return SearchResult::disturbed;
    const Inner* inner = as_inner(at->node);
    const uint32_t taken = bases_up_to(inner, span.base) - 1;
    // The reach is that of slots behind the span, too.
    if (inner->reach[taken].get() < span.end) may_contain = false;
    if (inner->base[taken].get() == span.base) is_sure_of_place = false;
    *step++ = {at->node, at->version, taken};
    if (!load_child(at, taken)) return SearchResult::disturbed;
  }
  const Leaf* const leaf = as_leaf(at->node);
  const uint32_t before = bases_up_to(leaf, span.base);
  *step = {at->node, at->version, before};
  *slot = static_cast<int>(before) - 1;
  const bool contains = may_contain && before != 0 && leaf->end[*slot].get() >= span.end;
  if (!at->node->unchanged(at->version)) return SearchResult::disturbed;
  if (contains) return SearchResult::found;
  if (is_sure_of_place) *steps_out = static_cast<uint32_t>(step + 1 - path);
  return may_contain && before == 0 ? search_before(span, path, step, at, slot) : SearchResult::absent;
}

// A search from the root down in a tree in which ends need not rise. It keeps its path, because the leaf that it
// reaches may have no answer: the child to which the span's base leads also has slots that start behind the span, so
// its reach may promise too much. Children to its left have only slots that start before the span, so their reach is
// reliable.
class Search {
 public:
  Search(const Span& span, bool exact) : span_(span), exact_(exact) {}

  // Walks to the leaf and slot that answer.
  SearchResult walk(const Word<Node*>& root, VersionedNode* at, int* slot) {
    if (!load_root(root, at)) return SearchResult::disturbed;
    if (at->node == nullptr) return SearchResult::absent;
    SearchResult result = descend(at, slot);
    while (result == SearchResult::absent && depth_ > 0) result = search_left_sibling(at, slot);
    return result;
  }

 private:
  // A child that was taken, and the node with it.
  struct Step {
    VersionedNode at;
    uint32_t slot;
  };

  // Walks from `at`, an inner node or a leaf, down to the answer.
  SearchResult descend(VersionedNode* at, int* slot) {
    while (!is_leaf(at->node)) {
      const Inner* inner = as_inner(at->node);
      if (depth_ == NodePool::kPerInsert) return SearchResult::disturbed;
      const int next = exact_ ? static_cast<int>(keys_up_to(inner, key_of(span_))) - 1
                              : rightmost_reaching(inner->reach, bases_up_to(inner, span_.base), span_);
      if (next < 0) return at->node->unchanged(at->version) ? SearchResult::absent : SearchResult::disturbed;
      if (!exact_) path_[depth_++] = {*at, static_cast<uint32_t>(next)};
      if (!load_child(at, static_cast<uint32_t>(next))) return SearchResult::disturbed;
    }
    const Leaf* leaf = as_leaf(at->node);
    *slot = exact_ ? find_equal(leaf, span_) : rightmost_reaching(leaf->end, bases_up_to(leaf, span_.base), span_);
    if (!at->node->unchanged(at->version)) return SearchResult::disturbed;
    return *slot >= 0 ? SearchResult::found : SearchResult::absent;
  }

  // Continues in the deepest node on the path that has another child that reaches far enough.
  SearchResult search_left_sibling(VersionedNode* at, int* slot) {
    const Step& last = path_[--depth_];
    *at = last.at;
    const int next = rightmost_reaching(as_inner(at->node)->reach, last.slot, span_);
    if (!at->node->unchanged(at->version)) return SearchResult::disturbed;
    if (next < 0) return SearchResult::absent;
    return load_child(at, static_cast<uint32_t>(next)) ? descend(at, slot) : SearchResult::disturbed;
  }

  const Span& span_;
  const bool exact_;
  Step path_[NodePool::kPerInsert];
  uint32_t depth_ = 0;
};

}  // namespace

inline SearchResult Tree::find(pinrail_thread_t* thread, const Span& span, bool exact,
                               pinrail_registration_t** reg_out) const {
  VersionedNode at;
  int slot = -1;
  pinrail_absent_t& absent = thread->absent;
  const SearchResult result = !exact && ends_rise() ? search_rising(root_, span, absent.way, &absent.steps, &at, &slot)
                                                    : Search(span, exact).walk(root_, &at, &slot);
  return result == SearchResult::found ? acquire(thread, at, static_cast<uint32_t>(slot), reg_out) : result;
}

// The index lock is held, so no search is disturbed.
pinrail_registration_t* Tree::peek(const Span& span, bool exact) const {
  VersionedNode at;
  int slot = -1;
  pinrail_step_t path[kPinrailSteps];
  uint32_t steps;
  const SearchResult result = !exact && ends_rise() ? search_rising(root_, span, path, &steps, &at, &slot)
                                                    : Search(span, exact).walk(root_, &at, &slot);
  return result == SearchResult::found ? as_leaf(at.node)->reg[slot].get() : nullptr;
}

pinrail_registration_t* Index::find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access) const {
  start_table::Found found;
  pinrail_handle_t handle;
  if (start_table::is_start(base) && start_table::look_up(start_table_.table(), base, 0, length, access, &found) &&
      start_table::take(thread, found, nullptr, &handle))
    return handle.reg;
  return find_without_start_table(thread, base, length, access);
}

// find() without the start table. It also finds a range inside a registration, and registrations that are not in the
// start table or are counted in their state words. A claimed one is left to find_or_announce() and find_under_lock(),
// which take the lock. If it is sure that no registration answers or adds rights to the request, it notes that in the
// thread for find_or_announce().
__attribute__((flatten)) pinrail_registration_t* Index::find_without_start_table(pinrail_thread_t* thread,
                                                                                 uintptr_t base, size_t length,
                                                                                 uint32_t access) const {
  constexpr int kAttempts = 3;
  const Query query = Query::of(base, length, access);
  bool sure = true;
  // The search leaves its way there. If it finds something, that is not the way of the range that was noted before.
  thread->absent.index = 0;
  thread->absent.steps = 0;
  // acquire: pairs with the release store in insert().
  const uint64_t inserts = inserts_.load(std::memory_order_acquire);
  // acquire: pairs with the release store in class_of_locked().
  const uint32_t count = classes_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (!answers(trees_[i], query)) {
      if (trees_[i].traits == query.traits && !exact_) sure = false;  // it may add rights to the request (R4)
      continue;
    }
    pinrail_registration_t* reg = nullptr;
    SearchResult result = SearchResult::disturbed;
    for (int n = 0; n < kAttempts && result == SearchResult::disturbed; ++n) {
      result = trees_[i].find(thread, query.span, exact_, &reg);
    }
    if (result == SearchResult::found) return reg;
    sure &= result == SearchResult::absent;
  }
  pinrail_absent_t& absent = thread->absent;
  absent.index = sure ? number_ : 0;
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

pinrail_registration_t* find_without_start_table_entry(void* module, pinrail_thread_t* thread, uintptr_t base,
                                                       size_t length, uint32_t access) {
  return static_cast<Module*>(module)->index.find_without_start_table(thread, base, length, access);
}

}  // namespace pinrail::vma
