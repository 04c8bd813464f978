// SPDX-License-Identifier: BSD-3-Clause
// vma_tree.h - the registrations of one class, ordered by (base, end). It is a B+tree whose inner nodes know how far
// each child reaches, so that a containment search is one path down even if spans overlap.
//
// Owns     its nodes. Not the registrations.
// Threads  is_clear_of() may run at any time without a lock. For all others the caller holds the index lock, and for
//          those that change the tree has marked the index as changing.
// Hook     All functions. None allocates.
//
// vma_tree/T1  No two slots have equal (base, end).
// vma_tree/T2  Unless registrations nest: no slot contains another, so ends rise as bases do.
// vma_tree/T3  vma_node/N1, vma_node/N3 and vma_node/N4 hold; every leaf except the root has at least one slot; all
//     leaves are at level 0.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_TREE_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_TREE_H

#include <algorithm>

#include "base/registration/registration.h"
#include "components/rcache/vma/vma_node.h"

namespace pinrail::vma {

// Returns whether the registration is exempt from domination (R3).
inline bool is_persistent(const pinrail_registration_t* reg) { return (reg->flags & PINRAIL_FLAG_PERSISTENT) != 0; }

class Tree {
 public:
  // What all of its registrations have.
  uint32_t rights = 0;
  uint32_t traits = 0;
  bool is_persistent = false;
  bool nests = false;  // one may contain another: persistent ones, and those of an EXACT index

  bool has_class_of(const pinrail_registration_t* reg) const {
    return rights == reg->rights && traits == reg->traits && is_persistent == vma::is_persistent(reg);
  }
  bool empty() const { return root_.get() == nullptr; }

  // A path from the root to a leaf. node[0] is the leaf; slot[i] is the child taken in node[i].
  struct Path {
    Node* node[NodePool::kPerInsert];
    uint32_t slot[NodePool::kPerInsert];
    unsigned depth = 0;

    const Leaf* neighbour(int step) const;
  };

  // Where a span is to be inserted. Valid until the tree changes.
  struct Place {
    Path path;
    uint32_t slot = 0;
    bool taken = false;  // a slot has exactly this span
    bool alone = false;  // no slot contains the span or is contained in it; false also if that would take a search
  };
  Place find_place(const Span& span) const;

  // False if the place is taken.
  bool insert(NodePool& pool, pinrail_registration_t* reg, Place* place);
  // False if the registration is not in the tree.
  bool remove(NodePool& pool, pinrail_registration_t* reg);

  // Result of remove_from_leaf(). is_last: no later leaf has anything that overlaps the span.
  struct RemovedFromLeaf {
    size_t count;
    bool is_last;
  };
  // Removes, from the first leaf that has any, the registrations that overlap the span and for which matches(reg) is
  // true. regs_out: room for Leaf::kSlots registrations.
  template <typename Matches>
  RemovedFromLeaf remove_from_leaf(NodePool& pool, const Span& span, Matches&& matches,
                                   pinrail_registration_t** regs_out);

  // Returns the registration in the slot that contains the span (exact: that equals it), without a reference; NULL if
  // there is none.
  pinrail_registration_t* peek(const Span& span, bool exact) const;

  // Without the lock: true only if no slot overlaps the span, provided that unchanged() is true afterwards as well. It
  // says whether the index has not changed meanwhile, in acquire order. False also where slots may be nested.
  template <typename Unchanged>
  bool is_clear_of(const Span& span, Unchanged&& unchanged) const;

  // Calls visit(reg) for the slots that overlap the span, in order of base, until it returns false.
  template <typename Visit>
  void for_overlaps(const Span& span, Visit&& visit) const {
    Node* root = root_.get();
    if (root != nullptr) visit_node(root, span, visit);
  }

  // Checks vma_tree/T1 to vma_tree/T3 and all reaches. Returns a reason if broken, else NULL.
  const char* check() const;

 private:
  template <typename Visit>
  static bool visit_node(const Node* node, const Span& span, Visit& visit);
  template <typename Choose>
  Path path_by(Choose&& choose) const;
  Path descend(Key key) const;
  Path path_by_end(uintptr_t address) const;
  pinrail_registration_t* peek_rising(const Span& span) const;
  __attribute__((noinline)) void split(NodePool& pool, Path* path, unsigned level, Key key);
  void grow_root(NodePool& pool, Path* path);
  void free_empty(NodePool& pool, const Path& path);
  void shrink_root(NodePool& pool);
  static void raise_reach(const Path& path, uintptr_t end);
  static void lower_reach(const Path& path, uintptr_t end);
  template <typename Matches>
  bool path_to_first(const Span& span, Matches& matches, Path* path_out) const;
  bool has_no_nesting(const Path& path, uint32_t slot, const Span& span) const;
  const char* check_node(const Node* node, const Key* low, const Key* high) const;

  Word<Node*> root_;
};

template <typename Visit>
bool Tree::visit_node(const Node* node, const Span& span, Visit& visit) {
  const uint32_t count = node->count.get();
  if (is_leaf(node)) {
    const Leaf* leaf = as_leaf(node);
    for (uint32_t i = 0; i < count && leaf->base[i].get() < span.end; ++i) {
      if (leaf->end[i].get() > span.base && !visit(leaf->reg[i].get())) return false;
    }
    return true;
  }
  const Inner* inner = as_inner(node);
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0 && inner->base[i].get() >= span.end) break;
    if (inner->reach[i].get() > span.base && !visit_node(inner->child[i].get(), span, visit)) return false;
  }
  return true;
}

// Finds the path to the first slot that overlaps the span and for which matches(reg) is true, which may be asked twice
// of one registration. False if there is none; then the path means nothing.
template <typename Matches>
bool Tree::path_to_first(const Span& span, Matches& matches, Path* path_out) const {
  if (!nests && !empty()) {
    *path_out = path_by_end(span.base);
    const Leaf* leaf = as_leaf(path_out->node[0]);
    const uint32_t slot = path_out->slot[0];
    if (slot == leaf->count.get() || leaf->base[slot].get() >= span.end) return false;
    if (matches(leaf->reg[slot].get())) return true;
  }
  const pinrail_registration_t* first = nullptr;
  for_overlaps(span, [&](const pinrail_registration_t* reg) {
    if (matches(reg)) first = reg;
    return first == nullptr;
  });
  if (first == nullptr) return false;
  *path_out = descend(key_of(span_of(first)));
  const Leaf* leaf = as_leaf(path_out->node[0]);
  while (leaf->reg[path_out->slot[0]].get() != first) ++path_out->slot[0];
  return true;
}

template <typename Matches>
Tree::RemovedFromLeaf Tree::remove_from_leaf(NodePool& pool, const Span& span, Matches&& matches,
                                             pinrail_registration_t** regs_out) {
  Path path;
  if (!path_to_first(span, matches, &path)) return {0, true};
  Leaf* const leaf = as_leaf(path.node[0]);
  // Registrations that stay are not read: each would be a cache miss. Slots from `behind` on begin behind the span.
  const uint32_t behind = bases_up_to(leaf, span.end - 1);
  uint32_t kept = path.slot[0];
  uint32_t taken = 0;
  uintptr_t end = 0;  // the largest of those that are removed
  for (uint32_t i = kept; i < behind; ++i) {
    pinrail_registration_t* reg = leaf->reg[i].get();
    if (leaf->end[i].get() > span.base && matches(reg)) {
      regs_out[taken++] = reg;
      end = std::max(end, leaf->end[i].get());
    } else {
      copy_slot(leaf, kept++, leaf, i);
    }
  }
  const bool is_last = behind < leaf->count.get();
  remove_slots(leaf, kept, behind);
  lower_reach(path, end);
  free_empty(pool, path);
  return {taken, is_last};
}

// Of the slots that end behind the span's base only the first one needs to be tested (vma_tree/T2). Follows a pointer
// only after unchanged() has confirmed the node it was read from.
template <typename Unchanged>
bool Tree::is_clear_of(const Span& span, Unchanged&& unchanged) const {
  const Node* node = root_.get();
  if (!unchanged()) return false;
  if (node == nullptr) return true;
  if (nests) return false;
  while (!is_leaf(node)) {
    const Inner* inner = as_inner(node);
    const uint32_t slot = upper_bound(inner->reach, span.base);
    if (slot >= std::min(inner->count.get(), Inner::kSlots)) return true;  // the cell may be a leaf by now
    node = inner->child[slot].get();
    if (!unchanged()) return false;
    fetch(node);
  }
  const Leaf* leaf = as_leaf(node);
  const uint32_t slot = upper_bound(leaf->end, span.base);
  return slot == Leaf::kSlots || leaf->base[slot].get() >= span.end;
}

}  // namespace pinrail::vma

#endif
