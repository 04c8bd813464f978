// SPDX-License-Identifier: BSD-3-Clause
// vma_node.h - one node of the index: a cell of 512 bytes with a seqlock version, which readers read without a lock.
//
// Threads  One writer at a time (it holds the index lock); readers at any time. A reader reads the version, the fields,
//          and the version again. If both versions are equal and even, the fields are consistent. All fields are
//          atomics: acquire loads keep the second read of the version behind the fields, release stores keep the writes
//          behind the first change of the version. There are no fences, because ThreadSanitizer does not know them.
// Hook     All functions.
//
// vma_node/N1  Cells are type-stable until the module is destroyed; a cell's version only rises.
// vma_node/N2  The version is odd exactly while the writer changes the cell.
// vma_node/N3  A leaf's slots rise by (base, end). An inner node's slot i >= 1 has a separator: all keys below child i
//     - 1 are smaller than it, and none below child i is. reach[i] is the largest end below child i.
// vma_node/N4  The base of each slot from count on is kUnused, so that a search by base need not read the count.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_NODE_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_NODE_H

#include <pinrail/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/core/select.h"
#include "base/core/span.h"

namespace pinrail::vma {

// An atomic pointer or integer with the memory orders that nodes need.
template <typename T>
class Word {
 public:
  T get() const { return value_.load(std::memory_order_acquire); }       // pairs with put()
  void put(T value) { value_.store(value, std::memory_order_release); }  // pairs with get()
  const T* place() const { return reinterpret_cast<const T*>(&value_); }

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
  std::atomic<uint64_t> version{0};
  Word<uint32_t> count;
  Word<uint32_t> level;  // 0: leaf

  // Called by the writer. While the version is odd, readers of the cell start again.
  void begin_change() { version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void end_change() { version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // Returns the version for unchanged(); odd: the node is being changed.
  uint64_t load_version() const { return version.load(std::memory_order_acquire); }
  bool unchanged(uint64_t seen) const { return version.load(std::memory_order_acquire) == seen; }
};

constexpr uintptr_t kUnused = UINTPTR_MAX;  // no registration begins there, because its end would have no address

struct Leaf : Node {
  static constexpr uint32_t kSlots = 20;
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

// Returns how many of the sorted words [0, count) are <= key; the first `first` are known to be. The loop selects
// without a branch, because the result of each comparison cannot be predicted.
inline uint32_t upper_bound(const Word<uintptr_t>* words, uint32_t first, uint32_t count, uintptr_t key) {
  uint32_t left = count > first ? count - first : 0;  // a node that is being changed may show any count
  while (left > 1) {
    const uint32_t half = left / 2;
    first = words[first + half - 1].get() <= key ? first + half : first;
    left -= half;
  }
  return left == 1 && words[first].get() <= key ? first + 1 : first;
}

// The same of kCount words, without a loop; a pointer takes fewer instructions than an index.
template <uint32_t kCount>
__attribute__((always_inline)) inline const Word<uintptr_t>* skip_up_to(const Word<uintptr_t>* words, uintptr_t key) {
  if constexpr (kCount == 0) return words;
  constexpr uint32_t kHalf = (kCount + 1) / 2;
  const Word<uintptr_t>* const behind = words + kHalf;
  const Word<uintptr_t>* const first = select_if_at_most(words, behind, behind[-1].place(), key);
  return skip_up_to < kCount <= 1 ? 0 : kCount - kHalf > (first, key);
}
template <uint32_t kCount>
__attribute__((always_inline)) inline uint32_t upper_bound(const Word<uintptr_t>* words, uintptr_t key) {
  return static_cast<uint32_t>(skip_up_to<kCount>(words, key) - words);
}

// Returns how many of a node's bases are <= base; by vma_node/N4 only used ones are. An inner node's first base counts
// as one of these.
inline uint32_t bases_up_to(const Leaf* leaf, uintptr_t base) { return upper_bound<Leaf::kSlots>(leaf->base, base); }
inline uint32_t bases_up_to(const Inner* inner, uintptr_t base) {
  return 1 + upper_bound<Inner::kSlots - 1>(inner->base + 1, base);
}

// The same for whole keys: searches by base, then steps back over the few equal bases by end.
template <typename N>
uint32_t keys_up_to(const N* node, Key key) {
  uint32_t slot = bases_up_to(node, key.base);
  while (slot > (is_leaf(node) ? 0 : 1) && key < node->key(slot - 1)) --slot;
  return slot;
}

// Keeps vma_node/N4 for slots that have become unused.
template <typename N>
void mark_unused(N* node, uint32_t from, uint32_t to) {
  for (uint32_t i = from; i < to; ++i) node->base[i].put(kUnused);
}

}  // namespace pinrail::vma

#endif
