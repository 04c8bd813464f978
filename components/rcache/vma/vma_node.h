// SPDX-License-Identifier: BSD-3-Clause
// vma_node.h - one node of the index: a cell of 512 bytes.
//
// Threads  One writer at a time (it holds the index lock). Events look without the lock whether anything overlaps
//          (Index::is_clear_hook): they read cells while these change, and afterwards whether they may believe it. So
//          all fields are atomics: acquire loads keep that question behind the fields, release stores keep the writes
//          behind the first change of the index's version. There are no fences, because ThreadSanitizer does not know
//          them.
// Hook     All functions.
//
// vma_node/N1  Cells are type-stable until the module is destroyed.
// vma_node/N3  A leaf's slots rise by (base, end). An inner node's slot i >= 1 has a separator: all keys below child i
//     - 1 are smaller than it, and none below child i is. reach[i] is the largest end below child i.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_NODE_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_NODE_H

#include <pinrail/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/core/span.h"

namespace pinrail::vma {

// An atomic pointer or integer with the memory orders that nodes need.
template <typename T>
class Word {
 public:
  T get() const { return value_.load(std::memory_order_acquire); }       // pairs with put()
  void put(T value) { value_.store(value, std::memory_order_release); }  // pairs with get()

 private:
  std::atomic<T> value_{};
};

struct Key {
  uintptr_t base = 0;
  uintptr_t end = 0;
  friend bool operator<(const Key& a, const Key& b) { return a.base != b.base ? a.base < b.base : a.end < b.end; }
  friend bool operator==(const Key& a, const Key& b) { return a.base == b.base && a.end == b.end; }
};

inline Key key_of(const Span& span) { return {span.base, span.end}; }

struct Node {
  Word<uint32_t> count;
  Word<uint32_t> level;  // 0: leaf
};

struct Leaf : Node {
  static constexpr uint32_t kSlots = 21;
  Word<uintptr_t> base[kSlots];
  Word<uintptr_t> end[kSlots];
  Word<pinrail_registration_t*> reg[kSlots];

  Key key(uint32_t i) const { return {base[i].get(), end[i].get()}; }
};

struct Inner : Node {
  static constexpr uint32_t kSlots = 15;
  Word<uintptr_t> base[kSlots];  // separators; [0] is not used
  Word<uintptr_t> end[kSlots];
  Word<uintptr_t> reach[kSlots];
  Word<Node*> child[kSlots];

  Key key(uint32_t i) const { return {base[i].get(), end[i].get()}; }
};

constexpr size_t kNodeBytes = 512;
static_assert(sizeof(Leaf) <= kNodeBytes && sizeof(Inner) <= kNodeBytes, "a node fits its cell");

// Prefetches all lines of a node, so that a search in it does not wait for one line after the other.
inline void fetch(const Node* node) {
  constexpr size_t kLine = 64;
#pragma GCC unroll 8
  for (size_t at = 0; at < kNodeBytes; at += kLine) __builtin_prefetch(reinterpret_cast<const char*>(node) + at);
}

inline Leaf* as_leaf(Node* node) { return static_cast<Leaf*>(node); }
inline Inner* as_inner(Node* node) { return static_cast<Inner*>(node); }
inline const Leaf* as_leaf(const Node* node) { return static_cast<const Leaf*>(node); }
inline const Inner* as_inner(const Node* node) { return static_cast<const Inner*>(node); }
inline bool is_leaf(const Node* node) { return node->level.get() == 0; }

// Returns how many of the sorted words [0, count) are <= key: by a look at each, because these do not wait for each
// other, as the steps of a binary search do.
inline uint32_t upper_bound(const Word<uintptr_t>* words, uint32_t count, uintptr_t key) {
  uint32_t up_to = 0;
#pragma GCC unroll 8
  for (uint32_t i = 0; i < count; ++i) up_to += words[i].get() <= key ? 1 : 0;
  return up_to;
}

// How many slots are used. A reader without the lock may find the count of another node in the cell, but reads no slot
// that this one has not.
inline uint32_t used(const Leaf* leaf) { return std::min(leaf->count.get(), Leaf::kSlots); }
inline uint32_t used(const Inner* inner) { return std::min(inner->count.get(), Inner::kSlots); }

// Returns how many of a node's bases are <= base. An inner node's first one counts as one of these.
inline uint32_t bases_up_to(const Leaf* leaf, uintptr_t base) { return upper_bound(leaf->base, used(leaf), base); }
inline uint32_t bases_up_to(const Inner* inner, uintptr_t base) {
  return 1 + upper_bound(inner->base + 1, std::max(used(inner), 1U) - 1, base);
}

// As bases_up_to() for whole keys: searches by base, then steps back over the few equal bases by end.
template <typename N>
uint32_t keys_up_to(const N* node, Key key) {
  uint32_t slot = bases_up_to(node, key.base);
  while (slot > (is_leaf(node) ? 0 : 1) && key < node->key(slot - 1)) --slot;
  return slot;
}

}  // namespace pinrail::vma

#endif
