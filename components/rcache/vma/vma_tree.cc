// SPDX-License-Identifier: BSD-3-Clause
// Searches and changes of a tree. The caller holds the index lock in all functions. Hook context (removals) or API
// context: nothing here allocates or frees.
#include "components/rcache/vma/vma_tree.h"

namespace pinrail::vma {

// Returns the path to the leaf to which choose(inner node) leads; its slot in the leaf is 0. The tree is not empty.
template <typename Choose>
Tree::Path Tree::path_by(Choose&& choose) const {
  Path path;
  Node* node = root_.get();
  unsigned level = node->level.get();
  path.depth = level + 1;
  for (; level > 0; --level) {
    path.node[level] = node;
    path.slot[level] = choose(node);
    node = node->child(path.slot[level]);
  }
  path.node[0] = node;
  path.slot[0] = 0;
  return path;
}

// Returns the path to behind the last slot whose base is not larger. The tree is not empty.
Tree::Path Tree::path_by_base(uintptr_t base) const {
  Path path = path_by([base](const Node* inner) { return child_for(inner, base); });
  path.slot[0] = upper_bound(path.node[0]->base, base);
  return path;
}

// If none nests, and the tree is not empty: returns the path to the first slot that ends behind the address; the slot
// is the last leaf's count if there is none.
Tree::Path Tree::path_by_end(uintptr_t address) const {
  Path path = path_by(
      [address](const Node* inner) { return std::min(upper_bound(inner->end, address), inner->count.get() - 1); });
  path.slot[0] = upper_bound(path.node[0]->end, address);
  return path;
}

// Puts a new root above the old one, with the old one as its only child.
void Tree::grow_root(NodePool& pool, Path* path) {
  Node* const old = root_.get();
  Node* const root = pool.take(old->level.get() + 1);
  insert_slot(root, 0, {0, reach_of(old)}, old);
  root_.put(root);
  path->node[path->depth] = root;
  path->slot[path->depth] = 0;
  ++path->depth;
}

// Splits a full node of the path: its upper half moves to a new node on its right. If the node is the last child and
// the base goes behind it, only one slot moves: registrations often come in address order, and then nodes stay full.
void Tree::split(NodePool& pool, Path* path, unsigned level, uintptr_t base) {
  Node* const node = path->node[level];
  if (level + 1 == path->depth) grow_root(pool, path);
  if (path->node[level + 1]->count.get() == Node::kSlots) split(pool, path, level + 1, base);
  Node* const parent = path->node[level + 1];
  const uint32_t at = path->slot[level + 1];

  Node* const right = pool.take(level);
  const bool appends = at + 1 == parent->count.get() && node->base[Node::kSlots - 1].get() < base;
  split_off(right, node, appends ? Node::kSlots - 1 : Node::kSlots / 2);
  insert_slot(parent, at + 1, {right->base[0].get(), reach_of(right)}, right);
  parent->end[at].put(reach_of(node));

  if (base < right->base[0].get()) return;
  path->slot[level] -= node->count.get();
  path->node[level] = right;
  path->slot[level + 1] = at + 1;
}

void Tree::raise_reach(const Path& path, uintptr_t end) {
  for (unsigned level = 1; level < path.depth; ++level) {
    Word<uintptr_t>& reach = path.node[level]->end[path.slot[level]];
    if (reach.get() >= end) return;
    reach.put(end);
  }
}

// Corrects the reaches on the path after an entry with that end was removed.
void Tree::lower_reach(const Path& path, uintptr_t end) {
  for (unsigned level = 1; level < path.depth; ++level) {
    Word<uintptr_t>& reach = path.node[level]->end[path.slot[level]];
    if (reach.get() != end) return;
    const uintptr_t lowered = reach_of(path.node[level - 1]);
    if (lowered == end) return;
    reach.put(lowered);
  }
}

// Returns the leaf before (step -1) or after (step 1) the path's leaf; NULL if there is none.
const Node* Tree::Path::neighbour(int step) const {
  for (unsigned level = 1; level < depth; ++level) {
    const int64_t at = int64_t{slot[level]} + step;
    if (at < 0 || at >= int64_t{node[level]->count.get()}) continue;
    const Node* down = node[level]->child(static_cast<uint32_t>(at));
    while (!down->is_leaf()) down = down->child(step < 0 ? down->count.get() - 1 : 0);
    return down;
  }
  return nullptr;
}

// Returns whether no slot contains the span or is contained in it. Where none nests, only the neighbours need to be
// tested; otherwise it returns false, because that would take a search.
bool Tree::has_no_nesting(const Path& path, const Span& span) const {
  if (nests) return false;
  const Node* const leaf = path.node[0];
  const uint32_t slot = path.slot[0];
  // The slot before it contains it, or both begin at the same base.
  const Node* const left = slot > 0 ? leaf : path.neighbour(-1);
  const uint32_t last = left == nullptr ? 0 : (slot > 0 ? slot : left->count.get()) - 1;
  if (left != nullptr && (left->end[last].get() >= span.end || left->base[last].get() == span.base)) return false;
  // The slot behind it, which begins behind its base, is contained in it.
  const Node* const right = slot < leaf->count.get() ? leaf : path.neighbour(1);
  return right == nullptr || right->end[right == leaf ? slot : 0].get() > span.end;
}

// Returns where the span is to be inserted.
Tree::Place Tree::find_place(const Span& span) const {
  Place place;
  if (!empty()) place.path = path_by_base(span.base);
  place.alone = empty() || has_no_nesting(place.path, span);
  return place;
}

pinrail_registration_t* Tree::peek(const Span& span, bool exact) const {
  if (empty()) return nullptr;
  Path path;
  if (!nests) {
    // Of the slots that end at or behind the span's end only the first one needs to be tested (vma_tree/T2).
    path = path_by_end(span.end - 1);
    const Node* const leaf = path.node[0];
    const uint32_t slot = path.slot[0];
    return slot < leaf->count.get() && leaf->base[slot].get() <= span.base ? leaf->reg(slot) : nullptr;
  }
  const auto answers = [&](const Node* leaf, uint32_t slot) {
    const Span own = leaf->span(slot);
    return own.contains(span) && (!exact || span.contains(own));
  };
  return search({span.base, span.base + 1}, answers, &path) ? path.node[0]->reg(path.slot[0]) : nullptr;
}

// At a place that find_place() returned.
void Tree::insert(NodePool& pool, pinrail_registration_t* reg, Place* place) {
  const Span span = span_of(reg);
  Path& path = place->path;
  if (empty()) {
    root_.put(pool.take(0));
    path = path_by_base(span.base);
  }
  if (path.node[0]->count.get() == Node::kSlots) split(pool, &path, 0, span.base);
  insert_slot(path.node[0], path.slot[0], span, reg);
  raise_reach(path, span.end);
}

bool Tree::remove(NodePool& pool, pinrail_registration_t* reg) {
  if (empty()) return false;
  const Span span = span_of(reg);
  Path path;
  if (nests) {
    const auto is_it = [reg](const Node* leaf, uint32_t slot) { return leaf->reg(slot) == reg; };
    if (!search(span, is_it, &path)) return false;
  } else {
    path = path_by_base(span.base);
    if (path.slot[0]-- == 0 || path.node[0]->reg(path.slot[0]) != reg) return false;
  }
  remove_slots(path.node[0], path.slot[0], path.slot[0] + 1);
  lower_reach(path, span.end);
  free_empty(pool, path);
  return true;
}

Tree::RemovedFromLeaf Tree::remove_from_leaf(NodePool& pool, const Span& span, bool contained_only,
                                             pinrail_registration_t** regs_out) {
  const auto matches = [&](const Node* leaf, uint32_t slot) {
    const Span own = leaf->span(slot);
    return contained_only ? span.contains(own) : span.overlaps(own);
  };
  Path path;
  bool is_found = false;
  if (!nests && !empty()) {
    path = path_by_end(span.base);
    const uint32_t slot = path.slot[0];
    if (slot == path.node[0]->count.get() || path.node[0]->base[slot].get() >= span.end) return {0, true};
    is_found = matches(path.node[0], slot);
  }
  if (!is_found && !search(span, matches, &path)) return {0, true};
  Node* const leaf = path.node[0];
  // Registrations that stay are not read: each would be a cache miss. Slots from `behind` on begin behind the span.
  const uint32_t behind = upper_bound(leaf->base, span.end - 1);
  uint32_t kept = path.slot[0];
  uint32_t taken = 0;
  uintptr_t end = 0;  // the largest of those that are removed
  for (uint32_t i = kept; i < behind; ++i) {
    if (matches(leaf, i)) {
      regs_out[taken++] = leaf->reg(i);
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

// After slots were removed from the path's leaf: frees it, and what is above it, where nothing is left in it. A node of
// which a little is left stays as it is: its slots serve later registrations, and merging them would save little (free
// at empty: Johnson and Shasha, 1989).
void Tree::free_empty(NodePool& pool, const Path& path) {
  for (unsigned level = 0; level + 1 < path.depth && path.node[level]->count.get() == 0; ++level) {
    const uint32_t slot = path.slot[level + 1];
    remove_slots(path.node[level + 1], slot, slot + 1);
    pool.put(path.node[level]);
  }
  shrink_root(pool);
}

// A root without children is freed; one with a single child is replaced by the child.
void Tree::shrink_root(NodePool& pool) {
  for (;;) {
    Node* const root = root_.get();
    const uint32_t count = root->count.get();
    if (count > 1 || (count == 1 && root->is_leaf())) return;
    root_.put(count == 0 ? nullptr : root->child(0));
    pool.put(root);
    if (count == 0) return;
  }
}

// Checks a node and all nodes below it, whose bases are in [low, high]. Returns a reason if broken, else NULL.
const char* Tree::check_node(const Node* node, uintptr_t low, uintptr_t high) const {
  const uint32_t count = node->count.get();
  if (count == 0 || count > Node::kSlots) return "a node is empty or over-full";
  for (uint32_t i = count; i < Node::kSlots; ++i) {
    if (node->base[i].get() != kUnused || node->end[i].get() != kUnused) return "an unused slot is not clear";
  }
  for (uint32_t i = 0; i < count; ++i) {
    const Span own = node->span(i);
    const uintptr_t from = node->is_leaf() || i > 0 ? own.base : low;
    if (from < low || from > high) return "a slot is outside its separators";
    if (node->is_leaf()) {
      const Span before = i > 0 ? node->span(i - 1) : Span{0, 0};
      if (own.base < before.base) return "slots of a leaf are out of order";
      if (i > 0 && !nests && (before.end >= own.end || before.base == own.base)) return "a slot contains its neighbour";
      const Span span = span_of(node->reg(i));
      if (own.base != span.base || own.end != span.end) return "a slot's span is not its registration's";
      continue;
    }
    const Node* const child = node->child(i);
    if (child->level.get() + 1 != node->level.get()) return "a child is not one level below";
    if (own.end != reach_of(child)) return "reach is wrong";
    const char* const why = check_node(child, from, i + 1 < count ? node->base[i + 1].get() : high);
    if (why != nullptr) return why;
  }
  return nullptr;
}

const char* Tree::check() const { return empty() ? nullptr : check_node(root_.get(), 0, UINTPTR_MAX); }

}  // namespace pinrail::vma
