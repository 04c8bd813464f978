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
// vma_node/N3  A leaf's bases rise. An inner node's slot i >= 1 has a separator: no base below child i - 1 is larger
// than
//     it, and none below child i is smaller. Its end is the largest one below the child.
// vma_node/N4  The base and the end of an unused slot are kUnused.
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

constexpr uintptr_t kUnused = UINTPTR_MAX;  // larger than every base, and than the last address of every range

// A slot of a leaf is a registration; one of another node is a child, and what lies below it.
struct Node {
  static constexpr uint32_t kSlots = 21;
  Word<uint32_t> count;
  Word<uint32_t> level;          // 0: leaf
  Word<uintptr_t> base[kSlots];  // of the registration; of a child that is not the first: a separator
  Word<uintptr_t> end[kSlots];   // of the registration, or the largest one below the child
  Word<void*> below[kSlots];

  bool is_leaf() const { return level.get() == 0; }
  Span span(uint32_t i) const { return {base[i].get(), end[i].get()}; }
  pinrail_registration_t* reg(uint32_t i) const { return static_cast<pinrail_registration_t*>(below[i].get()); }
  Node* child(uint32_t i) const { return static_cast<Node*>(below[i].get()); }
};

constexpr size_t kNodeBytes = 512;
static_assert(sizeof(Node) == kNodeBytes, "a node is a cell");

// Prefetches all lines of a node, so that a search in it does not wait for one line after the other.
inline void fetch(const Node* node) {
  constexpr size_t kLine = 64;
#pragma GCC unroll 8
  for (size_t at = 0; at < kNodeBytes; at += kLine) __builtin_prefetch(reinterpret_cast<const char*>(node) + at);
}

// Returns how many of a node's sorted words are <= key, which is below kUnused; those before kFirst count, and need not
// be sorted. It looks at every fifth word, and then at the four behind the last of these that is not larger: these
// looks do not wait for each other, as the steps of a binary search do, and no branch depends on the node.
template <uint32_t kFirst = 0, uint32_t kSlots>
inline uint32_t upper_bound(const Word<uintptr_t> (&words)[kSlots], uintptr_t key) {
  constexpr uint32_t kBetween = 4;
  static_assert(kFirst <= kBetween && kSlots > kBetween, "every fifth word is sorted, and there is one");
  uint32_t up_to = 0;
#pragma GCC unroll 8
  for (uint32_t i = kBetween; i < kSlots; i += kBetween + 1) up_to += words[i].get() <= key ? kBetween + 1 : 0;
  const uint32_t first = std::min(up_to, kSlots - kBetween);
  up_to = first;
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kBetween; ++i) up_to += first + i < kFirst || words[first + i].get() <= key ? 1 : 0;
  return up_to;
}

// Returns in which child the base belongs: the last one whose separator is not larger.
inline uint32_t child_for(const Node* inner, uintptr_t base) { return upper_bound<1>(inner->base, base) - 1; }

// Slots move within a node, or from one node to another. The index is marked as changing (Index::Change).

__attribute__((always_inline)) inline void copy_slot(Node* to, uint32_t i, const Node* from, uint32_t j) {
  to->base[i].put(from->base[j].get());
  to->end[i].put(from->end[j].get());
  to->below[i].put(from->below[j].get());
}

// vma_node/N4.
inline void clear_slots(Node* node, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; ++i) {
    node->base[i].put(kUnused);
    node->end[i].put(kUnused);
  }
}

// Puts a new slot at the place. There is room.
inline void insert_slot(Node* node, uint32_t at, const Span& span, void* below) {
  const uint32_t count = node->count.get();
  for (uint32_t i = count; i > at; --i) copy_slot(node, i, node, i - 1);
  node->base[at].put(span.base);
  node->end[at].put(span.end);
  node->below[at].put(below);
  node->count.put(count + 1);
}

// Removes slots [first, end).
inline void remove_slots(Node* node, uint32_t first, uint32_t end) {
  const uint32_t count = node->count.get(), removed = end - first;
  for (uint32_t i = first; i + removed < count; ++i) copy_slot(node, i, node, i + removed);
  clear_slots(node, count - removed, count);
  node->count.put(count - removed);
}

// Moves slots [from, count) to a node that has none.
inline void split_off(Node* other, Node* node, uint32_t from) {
  const uint32_t count = node->count.get();
  for (uint32_t i = from; i < count; ++i) copy_slot(other, i - from, node, i);
  other->count.put(count - from);
  clear_slots(node, from, count);
  node->count.put(from);
}

// Returns the largest end in or below the node.
inline uintptr_t reach_of(const Node* node) {
  uintptr_t reach = 0;
  for (uint32_t i = 0; i < node->count.get(); ++i) reach = std::max(reach, node->end[i].get());
  return reach;
}

// The cells. The caller holds the index lock, except for make_slab(), which allocates, and is_low().
class NodePool {
 public:
  // One insert splits at most one node per level and makes a new root. 10^11 leaves are more than memory holds.
  static constexpr size_t kPerInsert = 12;

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
      put(new (first + offset) Node);
    }
  }

  bool suffices() const { return free_count_.load(std::memory_order_relaxed) >= kPerInsert; }
  // Without the lock, a hint: some inserts may be under way, of which few take a cell.
  bool is_low() const { return free_count_.load(std::memory_order_relaxed) < 2 * kPerInsert; }

  // Takes a free cell, which exists by vma_node/P1: a node without slots.
  Node* take(uint32_t level) {
    Node* const node = free_;
    free_ = node->child(0);
    add_to_free_count(-1);
    node->level.put(level);
    clear_slots(node, 0, Node::kSlots);
    return node;
  }

  // Frees a cell that has left the tree.
  void put(Node* node) {
    node->below[0].put(free_);
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
