// SPDX-License-Identifier: BSD-3-Clause
// grdma_outside.h - the registrations of one pool that are held although the index does not have them: those that
// bypass it, and those that it refused or displaced. An event must reach these, too, so that the registrar learns that
// the memory is gone (R12).
//
// A treap by base, in which each node knows the largest end below it: an event finds what overlaps in logarithmic time.
// Its links are numbers of registrations (registration_arena.h), so that they fit into what a registration has anyway.
//
// Owns     its links. Not the registrations.
// Threads  `mutex` guards all ("unindexed" in lock_rank.h). A hook may find it empty without the lock.
// Hook     All functions.
//
// A registration is linked from before its register call reaches the device, or from before the index loses it, until
// its owner unlinks it, before it reads the reason. A hook looks here after it has searched the index.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_OUTSIDE_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_OUTSIDE_H

#include <atomic>

#include "base/core/span.h"
#include "base/sync/lock.h"
#include "framework/mpool/pool_area.h"

namespace pinrail::grdma {

using mpool::Area;
using mpool::area_of;
using mpool::is_invalidated;
using mpool::mark_invalidated_hook;

class Outside {
 public:
  Outside(char* const* chunks, HookLocks locks) : mutex(LockRank::unindexed, locks), chunks_(chunks) {}

  void link(pinrail_registration_t* reg) EXCLUDES(mutex) {
    Guard guard(mutex);
    link_locked(reg);
  }
  void link_locked(pinrail_registration_t* reg) REQUIRES(mutex) {
    area_of(reg).outside = {kNone, kNone};
    area_of(reg).is_outside = true;
    update(number_of(reg));
    root_.store(insert(root_.load(), number_of(reg)));
  }
  // It may be linked or not. Called by the registration's owner, which has seen by the state word that it was linked.
  void unlink(pinrail_registration_t* reg) EXCLUDES(mutex) {
    if (!area_of(reg).is_outside) return;
    Guard guard(mutex);
    area_of(reg).is_outside = false;
    root_.store(erase(root_.load(), number_of(reg)));
  }
  // seq_cst, as the stores: an event that finds nothing here comes before the next link().
  bool is_empty() const { return root_.load() == kNone; }
  // Marks what overlaps as invalidated.
  void invalidate(const Span& span) EXCLUDES(mutex) {
    Guard guard(mutex);
    invalidate_below(root_.load(), span);
  }

  HookMutex mutex;

 private:
  static constexpr uint32_t kNone = 0;  // no registration has this number
  struct Pair {
    uint32_t left, right;
  };

  static uint32_t number_of(const pinrail_registration_t* reg) { return static_cast<uint32_t>(arena::number_of(reg)); }
  static uint32_t priority_of(uint32_t number) { return number * 0x9E3779B1u; }
  pinrail_registration_t* at(uint32_t number) const { return arena::numbered(chunks_, number); }
  uint32_t& left_of(uint32_t node) const { return area_of(at(node)).outside.left; }
  uint32_t& right_of(uint32_t node) const { return area_of(at(node)).outside.right; }
  // The node below this one, or itself, whose registration has the largest end. relaxed: an answer that was given
  // before the registration was displaced may still be counted in the word (grdma_extent.h), by an exchange, which
  // fails from then on.
  uint32_t widest_of(uint32_t node) const { return __atomic_load_n(&at(node)->link, __ATOMIC_RELAXED); }
  uintptr_t reach_of(uint32_t node) const { return node == kNone ? 0 : span_of(at(widest_of(node))).end; }
  bool is_before(uint32_t a, uint32_t b) const {
    const uintptr_t base_a = span_of(at(a)).base, base_b = span_of(at(b)).base;
    return base_a != base_b ? base_a < base_b : a < b;
  }

  // After its children have changed. Returns the node.
  uint32_t update(uint32_t node) const {
    uint32_t widest = node;
    for (const uint32_t child : {left_of(node), right_of(node)}) {
      if (reach_of(child) > span_of(at(widest)).end) widest = widest_of(child);
    }
    __atomic_store_n(&at(node)->link, widest, __ATOMIC_RELAXED);
    return node;
  }
  // Those before the node and those behind it, which is not among them.
  Pair split(uint32_t tree, uint32_t node) const {
    if (tree == kNone) return {kNone, kNone};
    if (is_before(tree, node)) {
      const Pair rest = split(right_of(tree), node);
      right_of(tree) = rest.left;
      return {update(tree), rest.right};
    }
    const Pair rest = split(left_of(tree), node);
    left_of(tree) = rest.right;
    return {rest.left, update(tree)};
  }
  // All of left are before all of right.
  uint32_t merge(uint32_t left, uint32_t right) const {
    if (left == kNone || right == kNone) return left + right;
    if (priority_of(left) > priority_of(right)) {
      right_of(left) = merge(right_of(left), right);
      return update(left);
    }
    left_of(right) = merge(left, left_of(right));
    return update(right);
  }
  uint32_t insert(uint32_t tree, uint32_t node) const {
    const Pair sides = split(tree, node);
    return merge(merge(sides.left, node), sides.right);
  }
  uint32_t erase(uint32_t tree, uint32_t node) const {
    if (tree == node) return merge(left_of(node), right_of(node));
    uint32_t& side = is_before(node, tree) ? left_of(tree) : right_of(tree);
    side = erase(side, node);
    return update(tree);
  }
  void invalidate_below(uint32_t node, const Span& span) const {
    if (node == kNone || reach_of(node) <= span.base) return;
    invalidate_below(left_of(node), span);
    if (span_of(at(node)).overlaps(span)) mark_invalidated_hook(at(node));
    if (span_of(at(node)).base < span.end) invalidate_below(right_of(node), span);
  }

  char* const* const chunks_;
  std::atomic<uint32_t> root_{kNone};
};

}  // namespace pinrail::grdma

#endif
