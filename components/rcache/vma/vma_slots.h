// SPDX-License-Identifier: BSD-3-Clause
// vma_slots.h - moves slots within a node and from one node to another.
//
// Threads  The caller holds the index lock, and has marked the index as changing (Index::Change).
// Hook     All functions.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_SLOTS_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_SLOTS_H

#include <algorithm>

#include "components/rcache/vma/vma_node.h"

namespace pinrail::vma {

__attribute__((always_inline)) inline void copy_slot(Leaf* to, uint32_t i, const Leaf* from, uint32_t j) {
  to->base[i].put(from->base[j].get());
  to->end[i].put(from->end[j].get());
  to->reg[i].put(from->reg[j].get());
}

__attribute__((always_inline)) inline void copy_slot(Inner* to, uint32_t i, const Inner* from, uint32_t j) {
  to->base[i].put(from->base[j].get());
  to->end[i].put(from->end[j].get());
  to->reach[i].put(from->reach[j].get());
  to->child[i].put(from->child[j].get());
}

// Opens a gap at the slot.
template <typename N>
void open_gap(N* node, uint32_t slot) {
  const uint32_t count = node->count.get();
  for (uint32_t i = count; i > slot; --i) copy_slot(node, i, node, i - 1);
  node->count.put(count + 1);
}

// Removes slots [first, end).
template <typename N>
void remove_slots(N* node, uint32_t first, uint32_t end) {
  const uint32_t count = node->count.get(), removed = end - first;
  for (uint32_t i = first; i + removed < count; ++i) copy_slot(node, i, node, i + removed);
  node->count.put(count - removed);
}

template <typename N>
void close_gap(N* node, uint32_t slot) {
  remove_slots(node, slot, slot + 1);
}

// Moves slots [from, count) of node to the end of other.
template <typename N>
void move_slots(N* other, N* node, uint32_t from) {
  const uint32_t count = node->count.get();
  uint32_t into = other->count.get();
  for (uint32_t i = from; i < count; ++i) copy_slot(other, into++, node, i);
  other->count.put(into);
  node->count.put(from);
}

inline void move_slots(Node* other, Node* node, uint32_t from) {
  if (is_leaf(node)) {
    move_slots(as_leaf(other), as_leaf(node), from);
  } else {
    move_slots(as_inner(other), as_inner(node), from);
  }
}

inline uint32_t capacity(const Node* node) { return is_leaf(node) ? Leaf::kSlots : Inner::kSlots; }

// Returns the largest end in or below the node.
inline uintptr_t reach_of(const Node* node) {
  const Word<uintptr_t>* words = is_leaf(node) ? as_leaf(node)->end : as_inner(node)->reach;
  uintptr_t reach = 0;
  for (uint32_t i = 0; i < node->count.get(); ++i) reach = std::max(reach, words[i].get());
  return reach;
}

inline Key first_key(const Node* node) { return is_leaf(node) ? as_leaf(node)->key(0) : as_inner(node)->key(0); }

inline Key last_key(const Node* node) {
  const uint32_t last = node->count.get() - 1;
  return is_leaf(node) ? as_leaf(node)->key(last) : as_inner(node)->key(last);
}

// Fills an inner node's slot, with the child's reach.
inline void set_child(Inner* inner, uint32_t slot, Key separator, Node* child) {
  inner->base[slot].put(separator.base);
  inner->end[slot].put(separator.end);
  inner->reach[slot].put(reach_of(child));
  inner->child[slot].put(child);
}

// Returns the first slot of a leaf whose key is not smaller.
inline uint32_t lower_bound(const Leaf* leaf, Key key) {
  uint32_t slot = bases_up_to(leaf, key.base);
  while (slot > 0 && leaf->base[slot - 1].get() == key.base && leaf->end[slot - 1].get() >= key.end) --slot;
  return slot;
}

}  // namespace pinrail::vma

#endif
