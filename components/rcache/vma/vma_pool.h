// SPDX-License-Identifier: BSD-3-Clause
// vma_pool.h - cells for nodes, set aside before they are needed, so that an insert never allocates.
//
// Threads  All functions under the index lock, except make_slab(), for it allocates, and those on reservations.
//
// vma_pool/P1  free cells >= reservations * kPerInsert, once covered() has said true; an insert takes its cells before
//     it gives its reservation back.
// vma_pool/P2  Reference slots are given back to the system by the destructor alone (vma_node/N1).
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_POOL_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_POOL_H

#include <cstdlib>
#include <new>

#include "components/rcache/vma/vma_node.h"

namespace pinrail::vma {

class NodePool {
 public:
  // One insert splits at most every level and makes a new root: 15^11 leaves are more than memory holds.
  static constexpr size_t kPerInsert = 12;

  NodePool() = default;
  NodePool(const NodePool&) = delete;
  NodePool& operator=(const NodePool&) = delete;

  ~NodePool() {
    while (slabs_ != nullptr) {
      Slab* next = slabs_->next;
      std::free(slabs_);
      slabs_ = next;
    }
  }

  // A slab that is not in the pool yet; NULL without memory.
  struct Slab;
  static Slab* make_slab() {
    void* memory = std::aligned_alloc(kNodeBytes, kSlabBytes);
    return memory == nullptr ? nullptr : new (memory) Slab{nullptr};
  }
  static void drop_slab(Slab* slab) { std::free(slab); }

  void add(Slab* slab) {
    slab->next = slabs_;
    slabs_ = slab;
    char* const first = reinterpret_cast<char*>(slab);
    for (size_t offset = kSlabBytes - kNodeBytes; offset >= kNodeBytes; offset -= kNodeBytes) {
      put(new (first + offset) Leaf{});
    }
  }

  // Also without the lock. acq_rel: who does not see another's reservation any more sees the cells that it took.
  void reserve() { reservations_.fetch_add(1, std::memory_order_acq_rel); }
  void unreserve() { reservations_.fetch_sub(1, std::memory_order_acq_rel); }
  bool covered() const {
    const size_t reservations = reservations_.load(std::memory_order_acquire);
    return free_count_.load(std::memory_order_acquire) >= reservations * kPerInsert;
  }

  // A cell of that level, in change (odd version): fill it, then end_change(). There is one, by vma_pool/P1.
  Node* take(uint32_t level) {
    Node* node = free_;
    free_ = as_leaf(node)->reg[0].get() == nullptr ? nullptr : reinterpret_cast<Node*>(as_leaf(node)->reg[0].get());
    count_free(-1);
    node->begin_change();
    node->level.put(level);
    node->count.put(0);
    return node;
  }

  // The cell left the tree; its version has risen, so that readers in it start again.
  void put(Node* node) {
    node->begin_change();
    as_leaf(node)->reg[0].put(reinterpret_cast<pinrail_registration_t*>(free_));
    node->count.put(0);
    node->level.put(0);
    node->end_change();
    free_ = node;
    count_free(1);
  }

  struct Slab {
    Slab* next;
  };

 private:
  // Under the lock. release: see reserve().
  void count_free(int more) {
    free_count_.store(free_count_.load(std::memory_order_relaxed) + static_cast<size_t>(more),
                      std::memory_order_release);
  }

  static constexpr size_t kSlabBytes = 32 * kNodeBytes;  // the first cell is the slab's head

  Slab* slabs_ = nullptr;
  Node* free_ = nullptr;
  std::atomic<size_t> free_count_{0};
  std::atomic<size_t> reservations_{0};
};

}  // namespace pinrail::vma

#endif
