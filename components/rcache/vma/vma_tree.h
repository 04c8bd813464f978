// SPDX-License-Identifier: BSD-3-Clause
// vma_tree.h - the registrations of one class (equal rights and traits), ordered by (base, end): a B+tree whose inner
// nodes know how far each child reaches, so that containment is one way down, however much the spans overlap.
//
// Owns     its nodes. Not the registrations.
// Threads  find() at any time. All others: one at a time (the index lock). None of them allocates.
//
// vma_tree/T1  (base, end) of two slots are never equal.
// vma_tree/T2  Unless is_exact, or persistent ones are in: none contains another, so ends rise as bases do.
// vma_tree/T3  vma_node/N1-vma_node/N3; every leaf but the root holds at least one slot; all leaves are at level 0.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_TREE_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_TREE_H

#include <algorithm>

#include "base/registration/references.h"
#include "components/rcache/vma/vma_pool.h"

namespace pinrail::vma {

// What a search without a lock came to.
enum class Look : uint8_t { found, absent, disturbed };

class Tree {
 public:
  uint32_t rights = 0;
  uint32_t traits = 0;
  bool is_exact = false;  // its module is

  bool empty() const { return root_.get() == nullptr; }

  // A slot that contains the span (with exact: that equals it), with a reference taken. disturbed: a writer was at it.
  // absent: the thread is told the way to where the span would stand.
  Look find(pinrail_thread_t* thread, const Span& span, bool exact, pinrail_registration_t** reg_out) const;

  // The way from the root to a leaf; node[0] is the leaf, slot[i] the child taken in node[i].
  struct Path {
    Node* node[NodePool::kPerInsert];
    uint32_t slot[NodePool::kPerInsert];
    unsigned depth = 0;

    const Leaf* beside(int step) const;
  };

  // Where a span goes. Good until the tree changes.
  struct Place {
    Path path;
    uint32_t slot = 0;
    bool taken = false;  // by the very span
    bool alone = false;  // nothing of the tree contains it or is contained in it; false: or that would take a search
  };
  // absent: of a find of that span, or NULL: its way, as far as it has not changed, is not gone again.
  Place place_for(const Span& span, const pinrail_absent_t* absent = nullptr) const;

  // False if the place is taken.
  bool insert(NodePool& pool, pinrail_registration_t* reg, Place place);
  // False if it is not in.
  bool remove(NodePool& pool, pinrail_registration_t* reg);

  // What a removal came to; is_last: nothing else that overlaps the span goes.
  struct Taken {
    size_t count;
    bool is_last;
  };
  // Removes what overlaps the span and for which goes(reg), of the first leaf that has any: at once, for the tree need
  // then be put right but once. regs_out: room for a leaf.
  template <typename Goes>
  Taken take_leaf(NodePool& pool, const Span& span, Goes&& goes, pinrail_registration_t** regs_out);

  // The slot that contains the span, without a reference; NULL if none does.
  pinrail_registration_t* peek(const Span& span, bool exact) const;

  // Whether a slot overlaps the span, without the lock: found, absent, or disturbed if the index changed meanwhile;
  // unchanged() tells that, in acquire order.
  template <typename Unchanged>
  Look overlap_hook(const Span& span, Unchanged&& unchanged) const {
    const Node* root = root_.get();
    if (!unchanged()) return Look::disturbed;
    return root == nullptr ? Look::absent : overlap_below_hook(root, span, ends_rise(), unchanged);
  }

  // Calls visit(reg) for slots that overlap the span until it says false, in order of base.
  template <typename Visit>
  void for_overlaps(const Span& span, Visit&& visit) const {
    Node* root = root_.get();
    if (root != nullptr) visit_node(root, span, visit);
  }

  // Checks vma_tree/T1 to vma_tree/T3 and reach; a reason if broken, else NULL.
  const char* check() const;

 private:
  static constexpr unsigned kMaxDepth = NodePool::kPerInsert;

  template <typename Visit>
  static bool visit_node(const Node* node, const Span& span, Visit& visit);
  template <typename Unchanged>
  static Look overlap_below_hook(const Node* node, const Span& span, bool rising, Unchanged& unchanged);

  // vma_tree/T2. Who looks without the lock may find it true when a persistent one just comes: then he came before it.
  bool ends_rise() const { return !is_exact && exempt_.get() == 0; }
  Path descend(Key key) const;
  enum class Followed : uint8_t { no, to_its_leaf, to_its_slot };
  Followed follow(const pinrail_absent_t& absent, Key key, Path* path) const;
  static void descend_below(Node* node, unsigned level, Key key, Path* path);
  void split(NodePool& pool, Path* path, unsigned level, Key key);
  void grow_root(NodePool& pool, Path* path);
  bool merge(NodePool& pool, Inner* parent, uint32_t* slot);
  void tidy(NodePool& pool, Path* path);
  void lower_root(NodePool& pool);
  static void raise_reach(const Path& path, uintptr_t end);
  static void lower_reach(const Path& path, uintptr_t end);
  Path way_to_overlap(const Span& span) const;
  template <typename Goes>
  bool way_to_first(const Span& span, Goes& goes, Path* path_out) const;
  static void keep_slot(Leaf* leaf, uint32_t to, uint32_t from);
  bool stands_alone(const Path& path, uint32_t slot, const Span& span) const;
  const char* check_node(const Node* node, const Key* low, const Key* high) const;

  Word<Node*> root_;
  Word<size_t> exempt_;  // persistent entries: they may nest in others
};

// From domination (R3).
inline bool is_exempt(const pinrail_registration_t* reg) { return (reg->flags & PINRAIL_FLAG_PERSISTENT) != 0; }

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

// The way to the first slot that overlaps the span and for which goes(reg); false: there is none.
template <typename Goes>
bool Tree::way_to_first(const Span& span, Goes& goes, Path* path_out) const {
  if (ends_rise() && !empty()) {
    *path_out = way_to_overlap(span);
    const Leaf* leaf = as_leaf(path_out->node[0]);
    const uint32_t slot = path_out->slot[0];
    if (slot == leaf->count.get() || leaf->base[slot].get() >= span.end) return false;
    if (goes(leaf->reg[slot].get())) return true;
  }
  const pinrail_registration_t* first = nullptr;
  for_overlaps(span, [&](const pinrail_registration_t* reg) {
    if (goes(reg)) first = reg;
    return first == nullptr;
  });
  if (first == nullptr) return false;
  *path_out = descend(key_of(span_of(first)));
  const Leaf* leaf = as_leaf(path_out->node[0]);
  while (leaf->reg[path_out->slot[0]].get() != first) ++path_out->slot[0];
  return true;
}

template <typename Goes>
Tree::Taken Tree::take_leaf(NodePool& pool, const Span& span, Goes&& goes, pinrail_registration_t** regs_out) {
  Path path;
  if (!way_to_first(span, goes, &path)) return {0, true};
  Leaf* leaf = as_leaf(path.node[0]);
  const uint32_t count = leaf->count.get();
  const bool is_last = leaf->base[count - 1].get() >= span.end;
  // Registrations that stay are not looked at: each would be a line of memory.
  const auto overlaps = [&](uint32_t i) { return leaf->base[i].get() < span.end && leaf->end[i].get() > span.base; };
  uint32_t kept = path.slot[0];
  size_t taken = 0;
  uintptr_t end = 0;  // of those that go
  leaf->begin_change();
  for (uint32_t i = kept; i < count; ++i) {
    pinrail_registration_t* reg = leaf->reg[i].get();
    if (overlaps(i) && goes(reg)) {
      regs_out[taken++] = reg;
      end = std::max(end, leaf->end[i].get());
      if (is_exempt(reg)) exempt_.put(exempt_.get() - 1);
    } else {
      keep_slot(leaf, kept++, i);
    }
  }
  leaf->count.put(kept);
  leaf->end_change();
  lower_reach(path, end);
  tidy(pool, &path);
  return {taken, is_last};
}

// What was read of a node is not followed before it is known that nothing has changed. Where ends rise, what is left of
// one that ends before the span does so, too.
template <typename Unchanged>
Look Tree::overlap_below_hook(const Node* node, const Span& span, bool rising, Unchanged& unchanged) {
  const uint32_t count = node->count.get();
  const bool at_leaf = is_leaf(node);
  if (!unchanged()) return Look::disturbed;
  if (at_leaf) {
    const Leaf* leaf = as_leaf(node);
    for (uint32_t i = upper_bound(leaf->base, 0, count, span.end - 1); i > 0; --i) {
      if (leaf->end[i - 1].get() > span.base) return Look::found;
      if (rising) break;
    }
    return Look::absent;
  }
  const Inner* inner = as_inner(node);
  for (uint32_t i = upper_bound(inner->base, 1, count, span.end - 1); i > 0; --i) {
    if (inner->reach[i - 1].get() <= span.base) {
      if (rising) break;
      continue;
    }
    const Node* child = inner->child[i - 1].get();
    if (!unchanged()) return Look::disturbed;
    fetch(child);
    const Look look = overlap_below_hook(child, span, rising, unchanged);
    if (look != Look::absent) return look;
  }
  return Look::absent;
}

}  // namespace pinrail::vma

#endif
