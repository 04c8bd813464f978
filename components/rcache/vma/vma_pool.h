// SPDX-License-Identifier: BSD-3-Clause
// vma_pool.h - allocates cells for nodes before they are needed, so that an insert never allocates.
//
// Threads  The caller holds the index lock, except for make_slab(), which allocates, and is_low().
// Hook     All functions but make_slab() and the destructor.
//
// vma_pool/P1  An insert begins only if there are free cells for the most that it may take. Calls that miss bring more
//     beforehand while these are few; an insert that finds too few nevertheless is refused.
//
// Only the destructor gives cells back to the system (vma_node/N1).
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_POOL_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_POOL_H

#include <cstdlib>
#include <new>

#include "components/rcache/vma/vma_node.h"

namespace pinrail::vma {

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

  // Takes a free cell, which exists by vma_pool/P1; the caller fills it.
  Node* take(uint32_t level) {
    Node* node = free_;
    free_ = as_leaf(node)->reg[0].get() == nullptr ? nullptr : reinterpret_cast<Node*>(as_leaf(node)->reg[0].get());
    add_to_free_count(-1);
    node->level.put(level);
    node->count.put(0);
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
