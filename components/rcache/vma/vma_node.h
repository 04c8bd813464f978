// SPDX-License-Identifier: BSD-3-Clause
// vma_node.h - the nodes of the index: cells of 512 bytes, and their memory, which is allocated before it is needed, so
// that an insert never allocates.
//
// Threads  One writer at a time (it holds the index lock). Events look without the lock whether anything overlaps
//          (Index::is_clear_hook): they read cells while these change, and afterwards whether they may believe it. So
//          all fields are atomics: acquire loads keep that question behind the fields, release stores keep the writes
//          behind the first change of the index's version. There are no fences, because ThreadSanitizer does not know
//          them.
// Hook     All functions but make_slab() and the destructor of NodePool.
//
// vma_node/N1  Cells are type-stable until the module is destroyed: only NodePool's destructor gives them back.
// vma_node/N3  A leaf's slots rise by (base, end). An inner node's slot i >= 1 has a separator: all keys below child i
//     - 1 are smaller than it, and none below child i is. reach[i] is the largest end below child i.
// vma_node/N4  The base and the end of an unused slot are kUnused in a leaf, base and reach in an inner node.
// vma_node/P1  An insert begins only if there are free cells for the most that it may take. Calls that miss bring more
//     beforehand while these are few; an insert that finds too few nevertheless is refused.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_NODE_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_NODE_H

#include <pinrail/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>

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

constexpr uintptr_t kUnused = UINTPTR_MAX;  // larger than every base, and than the last address of every range

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

// Returns how many of a node's sorted words are <= key, which is below kUnused; those before kFirst count. It looks at
// each, of unused slots too: these looks do not wait for each other, as the steps of a binary search do, and no branch
// depends on the node.
template <uint32_t kFirst = 0, uint32_t kSlots>
inline uint32_t upper_bound(const Word<uintptr_t> (&words)[kSlots], uintptr_t key) {
  uint32_t up_to = kFirst;
#pragma GCC unroll 32
  for (uint32_t i = kFirst; i < kSlots; ++i) up_to += words[i].get() <= key ? 1 : 0;
  return up_to;
}

// Returns how many of a node's bases are <= base. An inner node's first one counts as one of these.
inline uint32_t bases_up_to(const Leaf* leaf, uintptr_t base) { return upper_bound(leaf->base, base); }
inline uint32_t bases_up_to(const Inner* inner, uintptr_t base) { return upper_bound<1>(inner->base, base); }

// As bases_up_to() for whole keys: searches by base, then steps back over the few equal bases by end.
template <typename N>
uint32_t keys_up_to(const N* node, Key key) {
  uint32_t slot = bases_up_to(node, key.base);
  while (slot > (is_leaf(node) ? 0 : 1) && key < node->key(slot - 1)) --slot;
  return slot;
}

// Slots move within a node, or from one node to another. The index is marked as changing (Index::Change).

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

// vma_node/N4.
inline void clear_slots(Leaf* leaf, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; ++i) {
    leaf->base[i].put(kUnused);
    leaf->end[i].put(kUnused);
  }
}

inline void clear_slots(Inner* inner, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; ++i) {
    inner->base[i].put(kUnused);
    inner->reach[i].put(kUnused);
  }
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
  clear_slots(node, count - removed, count);
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
  clear_slots(node, from, count);
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

// For check(): vma_node/N4.
inline bool has_unused_slots_clear(const Node* node) {
  const auto are_clear = [node](const auto& words, const auto& others) {
    for (uint32_t i = node->count.get(); i < std::size(words); ++i) {
      if (words[i].get() != kUnused || others[i].get() != kUnused) return false;
    }
    return true;
  };
  return is_leaf(node) ? are_clear(as_leaf(node)->base, as_leaf(node)->end)
                       : are_clear(as_inner(node)->base, as_inner(node)->reach);
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

// The cells. The caller holds the index lock, except for make_slab(), which allocates, and is_low().
class NodePool {
 public:
  // One insert splits at most one node per level and makes a new root. 15^11 leaves are more than memory holds.
  static constexpr size_t kPerInsert = 12;

  NodePool() = default;

  ~NodePool() {
    while (slabs_ != nullptr) {
      Slab* next = slabs_->next;
      std::free(slabs_);
      slabs_ = next;
    }
  }

  // make_slab() returns a slab that is not in the pool yet, or NULL if there is no memory.
  struct Slab;
  static Slab* make_slab() {
    void* memory = std::aligned_alloc(kNodeBytes, kSlabBytes);
    return memory == nullptr ? nullptr : new (memory) Slab{nullptr};
  }

  // Puts the slab's cells into the pool.
  void add(Slab* slab) {
    slab->next = slabs_;
    slabs_ = slab;
    char* const first = reinterpret_cast<char*>(slab);
    for (size_t offset = kSlabBytes - kNodeBytes; offset >= kNodeBytes; offset -= kNodeBytes) {
      put(new (first + offset) Leaf{});
    }
  }

  bool suffices() const { return free_count_.load(std::memory_order_relaxed) >= kPerInsert; }
  // Without the lock, a hint: some inserts may be under way, of which few take a cell.
  bool is_low() const { return free_count_.load(std::memory_order_relaxed) < 2 * kPerInsert; }

  // Takes a free cell, which exists by vma_node/P1; the caller fills it.
  Node* take(uint32_t level) {
    Node* node = free_;
    free_ = as_leaf(node)->reg[0].get() == nullptr ? nullptr : reinterpret_cast<Node*>(as_leaf(node)->reg[0].get());
    add_to_free_count(-1);
    node->level.put(level);
    node->count.put(0);
    if (level == 0) {
      clear_slots(as_leaf(node), 0, Leaf::kSlots);
    } else {
      clear_slots(as_inner(node), 0, Inner::kSlots);
    }
    return node;
  }

  // Frees a cell that has left the tree.
  void put(Node* node) {
    as_leaf(node)->reg[0].put(reinterpret_cast<pinrail_registration_t*>(free_));
    node->count.put(0);
    node->level.put(0);
    free_ = node;
    add_to_free_count(1);
  }

  struct Slab {
    Slab* next;
  };

 private:
  // The lock is held. relaxed: is_low() is a hint.
  void add_to_free_count(int more) {
    free_count_.store(free_count_.load(std::memory_order_relaxed) + static_cast<size_t>(more),
                      std::memory_order_relaxed);
  }

  static constexpr size_t kSlabBytes = 32 * kNodeBytes;  // the first cell is the slab's header

  Slab* slabs_ = nullptr;
  Node* free_ = nullptr;
  std::atomic<size_t> free_count_{0};
};

}  // namespace pinrail::vma

#endif
