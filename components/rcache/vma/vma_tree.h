// SPDX-License-Identifier: BSD-3-Clause
// vma_tree.h - the registrations of one class, ordered by base. It is a B+tree whose inner nodes know how far each
// child reaches, so that a containment search is one path down even if spans overlap.
//
// Owns     its nodes. Not the registrations.
// Threads  is_clear_of() may run at any time without a lock. For all others the caller holds the index lock, and for
//          those that change the tree has marked the index as changing.
// Hook     All functions. None allocates.
//
// vma_tree/T2  Unless registrations nest: no slot contains another, so bases and ends rise.
// vma_tree/T3  vma_node/N1, vma_node/N3 and vma_node/N4 hold; every leaf except the root has at least one slot; all
//     leaves are at level 0.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_TREE_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_TREE_H

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

  // A path from the root to a slot of a leaf, node[0]. slot[i] is the slot in node[i].
  struct Path {
    Node* node[NodePool::kPerInsert];
    uint32_t slot[NodePool::kPerInsert];
    unsigned depth = 0;

    const Node* neighbour(int step) const;
  };

  // Where a span is to be inserted. Valid until the tree changes.
  struct Place {
    Path path;
    bool alone = false;  // no slot contains the span or is contained in it; false also if that would take a search
  };
  Place find_place(const Span& span) const;

  // No slot is equal to it (vma/I4).
  void insert(NodePool& pool, pinrail_registration_t* reg, Place* place);
  // False if the registration is not in the tree.
  bool remove(NodePool& pool, pinrail_registration_t* reg);

  // Result of remove_from_leaf(). is_last: no later leaf has anything that overlaps the span.
  struct RemovedFromLeaf {
    size_t count;
    bool is_last;
  };
  // Removes, from the first leaf that has any, the registrations that overlap the span; contained_only: that it
  // contains. regs_out: room for Node::kSlots registrations.
  RemovedFromLeaf remove_from_leaf(NodePool& pool, const Span& span, bool contained_only,
                                   pinrail_registration_t** regs_out);

  // Returns the registration in the slot that contains the span, without a reference; NULL if there is none. exact:
  // that equals it; the registrations nest.
  pinrail_registration_t* peek(const Span& span, bool exact) const;

  // Without the lock: true only if no slot overlaps the span, provided that unchanged() is true afterwards as well. It
  // says whether the index has not changed meanwhile, in acquire order. False also where slots may be nested.
  template <typename Unchanged>
  bool is_clear_of(const Span& span, Unchanged&& unchanged) const;

  // Calls visit(reg) for the slots that overlap the span, in order of base, until it returns false.
  template <typename Visit>
  void for_overlaps(const Span& span, Visit&& visit) const {
    Path path;
    search(
        span, [&](const Node* leaf, uint32_t slot) { return !visit(leaf->reg(slot)); }, &path);
  }

  // Checks vma_tree/T2 and vma_tree/T3 and all reaches. Returns a reason if broken, else NULL.
  const char* check() const;

 private:
  // Finds the path to the first slot that overlaps the span and for which matches(leaf, slot) is true. False if there
  // is none; then the path means nothing.
  template <typename Matches>
  bool search(const Span& span, Matches&& matches, Path* path_out) const {
    if (empty()) return false;
    path_out->depth = root_.get()->level.get() + 1;
    return search_below(root_.get(), span, matches, path_out);
  }
  template <typename Matches>
  static bool search_below(Node* node, const Span& span, Matches& matches, Path* path);
  template <typename Choose>
  Path path_by(Choose&& choose) const;
  Path path_by_base(uintptr_t base) const;
  Path path_by_end(uintptr_t address) const;
  __attribute__((noinline)) void split(NodePool& pool, Path* path, unsigned level, uintptr_t base);
  void grow_root(NodePool& pool, Path* path);
  void free_empty(NodePool& pool, const Path& path);
  void shrink_root(NodePool& pool);
  static void raise_reach(const Path& path, uintptr_t end);
  static void lower_reach(const Path& path, uintptr_t end);
  bool has_no_nesting(const Path& path, const Span& span) const;
  const char* check_node(const Node* node, uintptr_t low, uintptr_t high) const;

  Word<Node*> root_;
};

template <typename Matches>
bool Tree::search_below(Node* node, const Span& span, Matches& matches, Path* path) {
  const unsigned level = node->level.get();
  path->node[level] = node;
  for (uint32_t i = 0; i < node->count.get(); ++i) {
    const bool has_base = level == 0 || i != 0;
    if (has_base && node->base[i].get() >= span.end) break;
    if (node->end[i].get() <= span.base) continue;
    path->slot[level] = i;
    if (level == 0 ? matches(node, i) : search_below(node->child(i), span, matches, path)) return true;
  }
  return false;
}

// Of the slots that end behind the span's base only the first one needs to be tested (vma_tree/T2). Follows a pointer
// only after unchanged() has confirmed the node it was read from.
template <typename Unchanged>
bool Tree::is_clear_of(const Span& span, Unchanged&& unchanged) const {
  const Node* node = root_.get();
  if (!unchanged()) return false;
  if (node == nullptr) return true;
  if (nests) return false;
  for (;;) {
    const uint32_t slot = upper_bound(node->end, span.base);
    if (node->is_leaf()) return slot == Node::kSlots || node->base[slot].get() >= span.end;
    if (slot >= std::min(node->count.get(), Node::kSlots)) return true;
    const Node* const child = node->child(slot);
    if (!unchanged()) return false;
    node = child;
    fetch(node);
  }
}

}  // namespace pinrail::vma

#endif
