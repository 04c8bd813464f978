// SPDX-License-Identifier: BSD-3-Clause
// cache_list.h - what the pools of one cache name have registered together, and their budget (R8, R11).
//
// Owns     numbers, and the list of all registrations that the device knows or is about to know. The lists are linked
//          through the registrations' areas.
// Threads  all functions may run together. API context.
// Hook     area_of(), DeadList::push_hook().
//
// cache_list/L1  The budget is the sum of the charges of the list, and of those that were unlinked and not yet repaid.
#ifndef PINRAIL_COMPONENTS_COMMON_CACHE_LIST_CACHE_LIST_H
#define PINRAIL_COMPONENTS_COMMON_CACHE_LIST_CACHE_LIST_H

#include <atomic>
#include <string>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/sync/lock.h"
#include "framework/mpool/budget.h"
#include "framework/mpool/messages.h"

namespace pinrail::cache_list {

// What such a pool keeps beside each registration.
struct Area {
  void* owner;                              // the pool
  uint64_t charge;                          // bytes of the budget
  pinrail_registration_t *previous, *next;  // in the cache's list
  pinrail_registration_t* next_dead;        // in the pool's list of the dead
};
static_assert(sizeof(Area) <= PINRAIL_AREA_LARGE, "it fits");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }

// Registrations without references that a hook has killed: a later call gives them back.
class DeadList {
 public:
  void push_hook(pinrail_registration_t* reg) {
    pinrail_registration_t* head = head_.load(std::memory_order_relaxed);  // relaxed: the exchange decides
    do {
      area_of(reg).next_dead = head;
      // release: the area is written before it is linked; pairs with the acquire exchange in take_all().
    } while (!head_.compare_exchange_weak(head, reg, std::memory_order_release, std::memory_order_relaxed));
  }

  // Takes all out and calls give_back(reg) for each, with no lock held.
  template <typename GiveBack>
  void drain(GiveBack&& give_back) {
    pinrail_registration_t* next = head_.exchange(nullptr, std::memory_order_acquire);
    while (next != nullptr) {
      pinrail_registration_t* const reg = next;
      next = area_of(reg).next_dead;
      give_back(reg);
    }
  }

 private:
  std::atomic<pinrail_registration_t*> head_{nullptr};
};

class CacheList {
 public:
  explicit CacheList(const mpool::WantedLimits& limits) : limits_(limits), budget_(limits) {}

  const mpool::Limits& limits() const { return limits_; }
  mpool::Usage usage() const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    return budget_.usage();
  }

  // Adds it; its area has owner and charge. OUT_OF_RESOURCE: the limits could never hold it; TEMP_OUT_OF_RESOURCE: not
  // before others leave.
  Status admit(pinrail_registration_t* reg) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    Area& area = area_of(reg);
    if (!budget_.could_ever_hold(area.charge)) return PINRAIL_ERR_OUT_OF_RESOURCE;
    if (!budget_.has_room_for(area.charge)) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    budget_.add(area.charge);
    link_locked(reg);
    return success();
  }

  // Removes what is in the list.
  void dismiss(pinrail_registration_t* reg) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    unlink_locked(reg);
    budget_.remove(area_of(reg).charge);
  }

  // One of the pool's; NULL: it has none.
  pinrail_registration_t* first_of(const void* owner) const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    return first_of_locked(owner);
  }

  // Calls visit(reg) for all, with the lock held.
  template <typename Visit>
  void for_each(Visit&& visit) const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    for_each_locked(visit);
  }

  // Calls visit(reg) for those of one pool, with the lock held.
  template <typename Visit>
  void for_each_of(const void* owner, Visit&& visit) const EXCLUDES(mutex_) {
    for_each([&](pinrail_registration_t* reg) {
      if (area_of(reg).owner == owner) visit(reg);
    });
  }

  // How many of one pool's are referenced; list_out, which may be NULL, gets them for a message.
  size_t count_referenced(const void* owner, std::string* list_out) const EXCLUDES(mutex_) {
    mpool::Referenced referenced(list_out);
    for_each_of(owner, [&](const pinrail_registration_t* reg) {
      referenced.add(reg, static_cast<int64_t>(references_of(reg)));
    });
    return referenced.count();
  }

  // False, with a message that lists them: some of the pool's are referenced.
  bool is_idle_or_reported(const pinrail_host_t* host, const void* owner) const EXCLUDES(mutex_) {
    std::string list;
    const size_t referenced = count_referenced(owner, &list);
    if (referenced != 0) mpool::report_busy(host, referenced, list);
    return referenced == 0;
  }

  // cache_list/L1, for tests: NULL, or what is broken. It tolerates what was unlinked and not yet repaid.
  const char* check() const EXCLUDES(mutex_) {
    Guard guard(mutex_);
    uint64_t bytes = 0, count = 0;
    for_each_locked([&](pinrail_registration_t* reg) {
      bytes += area_of(reg).charge;
      ++count;
    });
    const mpool::Usage usage = budget_.usage();
    return bytes > usage.bytes || count > usage.count ? "the budget is less than what is registered" : nullptr;
  }

 protected:
  pinrail_registration_t* first_of_locked(const void* owner) const REQUIRES(mutex_) {
    pinrail_registration_t* at = first_;
    while (at != nullptr && area_of(at).owner != owner) at = area_of(at).next;
    return at;
  }

  template <typename Visit>
  void for_each_locked(Visit&& visit) const REQUIRES(mutex_) {
    for (pinrail_registration_t* at = first_; at != nullptr; at = area_of(at).next) visit(at);
  }

  void link_locked(pinrail_registration_t* reg) REQUIRES(mutex_) {
    Area& area = area_of(reg);
    area.previous = nullptr;
    area.next = first_;
    (first_ != nullptr ? area_of(first_).previous : last_) = reg;
    first_ = reg;
  }
  void unlink_locked(pinrail_registration_t* reg) REQUIRES(mutex_) {
    const Area& area = area_of(reg);
    (area.next != nullptr ? area_of(area.next).previous : last_) = area.previous;
    (area.previous != nullptr ? area_of(area.previous).next : first_) = area.next;
  }

  const mpool::Limits limits_;
  mutable Mutex mutex_{LockRank::cache};
  mpool::Budget budget_ GUARDED_BY(mutex_);
  pinrail_registration_t* first_ GUARDED_BY(mutex_) = nullptr;  // the newest
  pinrail_registration_t* last_ GUARDED_BY(mutex_) = nullptr;
};

}  // namespace pinrail::cache_list

#endif
