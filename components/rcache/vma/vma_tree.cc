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
    path.slot[level] = choose(as_inner(node));
    node = as_inner(node)->child[path.slot[level]].get();
  }
  path.node[0] = node;
  path.slot[0] = 0;
  return path;
}

// Returns the path to the leaf where the key belongs.
Tree::Path Tree::descend(Key key) const {
  return path_by([key](const Inner* inner) { return keys_up_to(inner, key) - 1; });
}

// Puts a new root above the old one, with the old one as its only child.
void Tree::grow_root(NodePool& pool, Path* path) {
  Node* old = root_.get();
  Node* root = pool.take(old->level.get() + 1);
  set_child(as_inner(root), 0, {}, old);
  root->count.put(1);
  root_.put(root);
  path->node[path->depth] = root;
  path->slot[path->depth] = 0;
  ++path->depth;
}

// Splits a full node of the path: its upper half moves to a new node on its right. If the node is the last child and
// the key goes behind it, only one slot moves: registrations often come in address order, and then nodes stay full.
void Tree::split(NodePool& pool, Path* path, unsigned level, Key key) {
  Node* node = path->node[level];
  if (level + 1 == path->depth) grow_root(pool, path);
  if (path->node[level + 1]->count.get() == Inner::kSlots) split(pool, path, level + 1, key);
  Inner* parent = as_inner(path->node[level + 1]);
  const uint32_t at = path->slot[level + 1];

  Node* right = pool.take(node->level.get());
  const bool appends = at + 1 == parent->count.get() && last_key(node) < key;
  move_slots(right, node, appends ? capacity(node) - 1 : capacity(node) / 2);
  open_gap(parent, at + 1);
  set_child(parent, at + 1, first_key(right), right);
  parent->reach[at].put(reach_of(node));

  if (!(key < first_key(right))) {
    path->node[level] = right;
    path->slot[level + 1] = at + 1;
    if (level > 0) path->slot[level] -= node->count.get();
  }
}

void Tree::raise_reach(const Path& path, uintptr_t end) {
  for (unsigned level = 1; level < path.depth; ++level) {
    Word<uintptr_t>& reach = as_inner(path.node[level])->reach[path.slot[level]];
    if (reach.get() >= end) return;
    reach.put(end);
  }
}

// Corrects the reaches on the path after an entry with that end was removed.
void Tree::lower_reach(const Path& path, uintptr_t end) {
  for (unsigned level = 1; level < path.depth; ++level) {
    Word<uintptr_t>& reach = as_inner(path.node[level])->reach[path.slot[level]];
    if (reach.get() != end) return;
    const uintptr_t lowered = reach_of(path.node[level - 1]);
    if (lowered == end) return;
    reach.put(lowered);
  }
}

// If none nests, and the tree is not empty: returns the path to the first slot that ends behind the address; the slot
// is the last leaf's count if there is none.
Tree::Path Tree::path_by_end(uintptr_t address) const {
  Path path = path_by(
      [address](const Inner* inner) { return std::min(upper_bound(inner->reach, address), inner->count.get() - 1); });
  const Leaf* const leaf = as_leaf(path.node[0]);
  path.slot[0] = upper_bound(leaf->end, address);
  return path;
}

// Returns the leaf before (step -1) or after (step 1) the path's leaf; NULL if there is none.
const Leaf* Tree::Path::neighbour(int step) const {
  for (unsigned level = 1; level < depth; ++level) {
    const int64_t at = int64_t{slot[level]} + step;
    if (at < 0 || at >= int64_t{node[level]->count.get()}) continue;
    const Node* down = as_inner(node[level])->child[at].get();
    while (!is_leaf(down)) down = as_inner(down)->child[step < 0 ? down->count.get() - 1 : 0].get();
    return as_leaf(down);
  }
  return nullptr;
}

// Returns whether no slot contains the span or is contained in it. Where none nests, only the neighbours need to be
// tested; otherwise it returns false, because that would take a search.
bool Tree::has_no_nesting(const Path& path, uint32_t slot, const Span& span) const {
  if (nests) return false;  // it would take a search
  const Leaf& leaf = *as_leaf(path.node[0]);
  // The slot before it contains it, or both begin at the same base.
  const auto is_free_of = [&](const Leaf& left, uint32_t last) {
    return left.end[last].get() < span.end && left.base[last].get() != span.base;
  };
  if (slot > 0) {
    if (!is_free_of(leaf, slot - 1)) return false;
  } else {
    const Leaf* const left = path.neighbour(-1);
    if (left != nullptr && !is_free_of(*left, left->count.get() - 1)) return false;
  }
  // The slot behind it is contained in it, or begins at the same base and contains it.
  const auto is_free_behind = [&](const Leaf& right, uint32_t first) {
    return right.end[first].get() > span.end && right.base[first].get() != span.base;
  };
  if (slot < leaf.count.get()) return is_free_behind(leaf, slot);
  const Leaf* right = path.neighbour(1);
  return right == nullptr || is_free_behind(*right, 0);
}

// Returns where the span is to be inserted.
Tree::Place Tree::find_place(const Span& span) const {
  Place place;
  if (empty()) {
    place.alone = true;
    return place;
  }
  const Key key = key_of(span);
  place.path = descend(key);
  const Leaf* leaf = as_leaf(place.path.node[0]);
  place.slot = lower_bound(leaf, key);
  place.taken = place.slot < leaf->count.get() && leaf->key(place.slot) == key;
  place.alone = !place.taken && has_no_nesting(place.path, place.slot, span);
  return place;
}

// Returns the registration in the slot that contains the span (exact: that equals it); NULL: there is none.
pinrail_registration_t* Tree::peek(const Span& span, bool exact) const {
  if (empty()) return nullptr;
  if (exact) {
    const Place place = find_place(span);
    return place.taken ? as_leaf(place.path.node[0])->reg[place.slot].get() : nullptr;
  }
  if (!nests) return peek_rising(span);
  pinrail_registration_t* found = nullptr;
  for_overlaps({span.base, span.base + 1}, [&](pinrail_registration_t* reg) {
    if (span_of(reg).contains(span)) found = reg;
    return found == nullptr;
  });
  return found;
}

// Of the slots that end at or behind the span's end only the first one needs to be tested (vma_tree/T2).
pinrail_registration_t* Tree::peek_rising(const Span& span) const {
  const Path path = path_by_end(span.end - 1);
  const Leaf* leaf = as_leaf(path.node[0]);
  const uint32_t slot = path.slot[0];
  return slot < leaf->count.get() && leaf->base[slot].get() <= span.base ? leaf->reg[slot].get() : nullptr;
}

// Inserts the registration at a place that find_place() returned. False if the place is taken.
bool Tree::insert(NodePool& pool, pinrail_registration_t* reg, Place* place) {
  const Span span = span_of(reg);
  if (place->taken) return false;
  Path& path = place->path;
  if (empty()) {
    Node* leaf = pool.take(0);
    root_.put(leaf);
    path = descend(key_of(span));
  }
  if (path.node[0]->count.get() == Leaf::kSlots) {
    split(pool, &path, 0, key_of(span));
    place->slot = lower_bound(as_leaf(path.node[0]), key_of(span));
  }
  Leaf* leaf = as_leaf(path.node[0]);
  const uint32_t slot = place->slot;
  open_gap(leaf, slot);
  leaf->base[slot].put(span.base);
  leaf->end[slot].put(span.end);
  leaf->reg[slot].put(reg);
  raise_reach(path, span.end);
  return true;
}

// Removes the registration. False if it is not in the tree.
bool Tree::remove(NodePool& pool, pinrail_registration_t* reg) {
  if (empty()) return false;
  const Key key = key_of(span_of(reg));
  Path path = descend(key);
  Leaf* leaf = as_leaf(path.node[0]);
  const uint32_t slot = lower_bound(leaf, key);
  if (slot >= leaf->count.get() || leaf->reg[slot].get() != reg) return false;
  close_gap(leaf, slot);
  lower_reach(path, key.end);
  free_empty(pool, path);
  return true;
}

// After slots were removed from the path's leaf: frees it, and what is above it, where nothing is left in it. A node of
// which a little is left stays as it is: its slots serve later registrations, and merging them would save little (free
// at empty: Johnson and Shasha, 1989).
void Tree::free_empty(NodePool& pool, const Path& path) {
  for (unsigned level = 0; level + 1 < path.depth && path.node[level]->count.get() == 0; ++level) {
    close_gap(as_inner(path.node[level + 1]), path.slot[level + 1]);
    pool.put(path.node[level]);
  }
  shrink_root(pool);
}

// A root without children is freed; one with a single child is replaced by the child.
void Tree::shrink_root(NodePool& pool) {
  for (;;) {
    Node* root = root_.get();
    const uint32_t count = root->count.get();
    if (count > 1 || (count == 1 && is_leaf(root))) return;
    root_.put(count == 0 ? nullptr : as_inner(root)->child[0].get());
    pool.put(root);
    if (count == 0) return;
  }
}

// Checks a node and all nodes below it, with keys in [low, high). Returns a reason if broken, else NULL.
const char* Tree::check_node(const Node* node, const Key* low, const Key* high) const {
  const uint32_t count = node->count.get();
  if (count == 0 || count > capacity(node)) return "a node is empty or over-full";
  if (!has_unused_slots_clear(node)) return "an unused slot is not clear";
  if (is_leaf(node)) {
    const Leaf* leaf = as_leaf(node);
    for (uint32_t i = 0; i < count; ++i) {
      const Key key = leaf->key(i);
      if (i > 0 && !(leaf->key(i - 1) < key)) return "slots of a leaf are out of order";
      const bool contains = i > 0 && (leaf->end[i - 1].get() >= key.end || leaf->base[i - 1].get() == key.base);
      if (contains && !nests) return "a slot contains its neighbour";
      if ((low != nullptr && key < *low) || (high != nullptr && !(key < *high)))
        return "a slot is outside its separators";
      if (!(key == key_of(span_of(leaf->reg[i].get())))) return "a slot's span is not its registration's";
    }
    return nullptr;
  }
  const Inner* inner = as_inner(node);
  for (uint32_t i = 0; i < count; ++i) {
    const Key from = inner->key(i);
    const Key to = i + 1 < count ? inner->key(i + 1) : Key{};
    const Node* child = inner->child[i].get();
    if (child->level.get() + 1 != node->level.get()) return "a child is not one level below";
    if (inner->reach[i].get() != reach_of(child)) return "reach is wrong";
    const char* why = check_node(child, i > 0 ? &from : low, i + 1 < count ? &to : high);
    if (why != nullptr) return why;
  }
  return nullptr;
}

const char* Tree::check() const { return empty() ? nullptr : check_node(root_.get(), nullptr, nullptr); }

}  // namespace pinrail::vma
