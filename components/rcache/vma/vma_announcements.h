// SPDX-License-Identifier: BSD-3-Clause
// vma_announcements.h - the register calls under way that will insert into the index: requests that one of them will
// answer wait for it, and events that overtake them are noticed.
//
// Owns     the list. Each announcement is a local variable of its register call.
// Threads  is_empty_hook() at any time. For all others the caller holds the index lock.
// Hook     All functions.
//
// A call is listed from before it searches the index for the last time until what it registered is in the index, or
// until it has withdrawn.
//
// vma_announcements/W2  An event that finds the list empty without the lock comes before the next call looks at the
//     mapping, or after the insert of the last one.
#ifndef PINRAIL_COMPONENTS_RCACHE_VMA_ANNOUNCEMENTS_H
#define PINRAIL_COMPONENTS_RCACHE_VMA_ANNOUNCEMENTS_H

#include <pinrail/component_rcache.h>

#include <atomic>

#include "base/core/span.h"

namespace pinrail::vma {

class Announcements {
 public:
  using Announcement = pinrail_announcement_t;

  // Lists it, unless one that is listed will answer its request: then waits_for names that one. A request that has
  // waited waits for no other.
  bool enter(Announcement* own, bool is_exact) {
    mark_of(own) = {};
    if (is_waited_for(own, is_exact)) return false;
    mark_of(own).next = first_.load();
    first_.store(own);  // seq_cst: vma_announcements/W2
    return true;
  }
  void leave(Announcement* own) {
    Announcement* before = first_.load();
    if (before == own) {
      // release: an event that finds the list empty finds what this call has inserted.
      first_.store(mark_of(own).next, std::memory_order_release);
      return;
    }
    while (mark_of(before).next != own) before = mark_of(before).next;
    mark_of(before).next = mark_of(own).next;
  }

  static void change(Announcement* own, const Span& span) {
    own->base = span.base;
    own->length = span.length();
    mark_of(own).is_overtaken = false;
  }

  bool is_empty_hook() const { return first_.load() == nullptr; }
  void overtake_hook(const Span& span) {
    for (Announcement* each = first_.load(); each != nullptr; each = mark_of(each).next) {
      if (span_of(each).overlaps(span)) mark_of(each).is_overtaken = true;
    }
  }
  // Whether an event has overtaken it since this was asked last.
  static bool take_overtaken(Announcement* own) {
    const bool is_overtaken = mark_of(own).is_overtaken;
    mark_of(own).is_overtaken = false;
    return is_overtaken;
  }

 private:
  struct Mark {
    Announcement* next = nullptr;
    uint64_t ticket = 0;  // its name, once another call waits for it: another announcement may have its address later
    bool is_overtaken = false;
  };
  static_assert(sizeof(Mark) <= sizeof(Announcement::own), "it fits");
  static Mark& mark_of(Announcement* each) { return *reinterpret_cast<Mark*>(each->own); }
  static Span span_of(const Announcement* each) { return Span::of(each->base, each->length); }

  bool is_waited_for(Announcement* own, bool is_exact) {
    for (Announcement* other = first_.load(); other != nullptr; other = mark_of(other).next) {
      if (own->waits_for != 0 ? mark_of(other).ticket != own->waits_for : !will_answer(other, own, is_exact)) continue;
      if (mark_of(other).ticket == 0) mark_of(other).ticket = ++last_ticket_;
      own->waits_for = mark_of(other).ticket;
      return true;
    }
    return false;
  }
  // R4: what it registers may be more than what it was asked for.
  static bool will_answer(const Announcement* other, const Announcement* own, bool is_exact) {
    if (((other->access ^ own->access) & PINRAIL_TRAITS_MASK) != 0) return false;
    if ((own->flags & ~other->flags) != 0) return false;
    if (is_exact) return other->base == own->base && other->length == own->length && other->access == own->access;
    return span_of(other).contains(span_of(own)) && (own->access & ~(other->access | other->more_rights)) == 0;
  }

  std::atomic<Announcement*> first_{nullptr};  // vma_announcements/W2; seq_cst where no other order is named
  uint64_t last_ticket_ = 0;
};

}  // namespace pinrail::vma

#endif
