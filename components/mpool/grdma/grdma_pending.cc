// SPDX-License-Identifier: BSD-3-Clause
// Register calls under way: equal ones wait for each other, and events that overtake them are noticed (R5, R13).
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Begins a registration, unless the index has it by now: then found, with a reference. Waits once for a call under way
// that will cover this one; if that one fails, goes on by itself.
Entered Pool::enter(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out) {
  const Span& span = request.span;
  own->span = span;
  own->traits = request.traits();
  own->rights = request.rights();
  uint32_t more_rights = 0;
  const auto begin = [&] {
    return rcache_.ops->begin(rcache_.module, thread, span.base, span.length(), request.access(), reg_out,
                              &more_rights);
  };
  const auto entered = [](pinrail_status_t begun) {
    return begun == PINRAIL_ERR_NOT_FOUND ? Entered::ready : Entered::needs_memory;
  };
  // Mostly nobody else is here, and then the lock is not needed: entered first, and looked then, so that who was here
  // before has either left what he made in the index, or is seen.
  Pending* nobody = nullptr;
  if (pending_.compare_exchange_strong(nobody, own)) {
    const pinrail_status_t begun = begin();
    if (begun != PINRAIL_SUCCESS && more_rights == 0) return entered(begun);
    Guard guard(pending_mutex_);
    if (begun == PINRAIL_SUCCESS) leave_locked(own);
    own->rights |= more_rights;
    return begun == PINRAIL_SUCCESS ? Entered::found : entered(begun);
  }
  Guard guard(pending_mutex_);
  for (bool may_wait = true;;) {
    own->rights = request.rights();
    Pending* head = pending_.load();
    const pinrail_status_t begun = begin();
    if (begun == PINRAIL_SUCCESS) return Entered::found;
    Pending* other = may_wait ? covering_pending(*own) : nullptr;
    if (other != nullptr) {
      rcache_.ops->cancel(rcache_.module);
      wait_for(other);
      may_wait = false;
      continue;
    }
    own->rights |= more_rights;  // R4
    own->next = head;
    if (pending_.compare_exchange_strong(head, own)) return entered(begun);
    rcache_.ops->cancel(rcache_.module);  // somebody came without the lock, and may be who this one has to wait for
  }
}

void Pool::wait_for(Pending* other) {
  if (other->ticket == 0) other->ticket = ++tickets_;
  const uint64_t ticket = other->ticket;
  ++waiters_;
  while (is_pending(ticket)) pending_done_.wait(pending_mutex_);
  --waiters_;
}

Pending* Pool::covering_pending(const Pending& own) const {
  const bool exact = (config_.flags & PINRAIL_POOL_EXACT) != 0;
  for (Pending* other = pending_.load(); other != nullptr; other = other->next) {
    if (other->traits != own.traits) continue;
    const bool same =
        other->rights == own.rights && other->span.base == own.span.base && other->span.end == own.span.end;
    const bool covers = other->span.contains(own.span) && (other->rights & own.rights) == own.rights;
    if (exact ? same : covers) return other;
  }
  return nullptr;
}

bool Pool::is_pending(uint64_t ticket) const {
  for (const Pending* other = pending_.load(); other != nullptr; other = other->next) {
    if (other->ticket == ticket) return true;
  }
  return false;
}

void Pool::unlink_pending(Pending* own) {
  Pending* before = pending_.load();
  if (before == own) {
    // release: who finds nobody finds what this one has inserted.
    pending_.store(own->next, std::memory_order_release);
    return;
  }
  while (before != nullptr && before->next != own) before = before->next;
  if (before != nullptr) before->next = own->next;
}

// Puts the registration into the index, with its maker's reference, unless an event overtook it. The check and the
// insert are one step for invalidate_range_hook, which marks under the same lock before it searches the index, or finds
// that nobody is here. What was not overtaken is pending no more.
Published Pool::publish(const pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg) {
  const uint64_t counting = state::load(reg) & state::kPerThread;
  Guard guard(pending_mutex_);
  if (own->raced) {
    own->raced = false;  // for the next try
    rcache_.ops->cancel(rcache_.module);
    state::set(reg, counting | state::kDead);
    return Published::raced;
  }
  touch(reg, cache_->epoch());
  if (counting != 0) references::count_surely(thread, reg, 1);
  state::set(reg, counting | state::kIndexed, counting != 0 ? 0 : 1);
  const bool is_in = rcache_.ops->insert(rcache_.module, thread, reg, displaced_hook, this) == PINRAIL_SUCCESS;
  if (!is_in) {
    if (counting == 0) link_uncached_locked(reg);
    state::set(reg, counting | state::kDead);
    if (counting != 0) push_displaced_hook(reg);
  }
  leave_locked(own);  // last: a hook that finds nobody here must find the index, and what is displaced, as they are now
  return is_in ? Published::indexed : Published::alone;
}

void Pool::link_uncached(pinrail_registration_t* reg) {
  Guard guard(pending_mutex_);
  link_uncached_locked(reg);
}

void Pool::link_uncached_locked(pinrail_registration_t* reg) {
  UncachedArea& area = uncached_area_of(reg);
  area.is_uncached = true;
  area.previous_uncached = nullptr;
  area.next_uncached = uncached_.load();
  if (area.next_uncached != nullptr) uncached_area_of(area.next_uncached).previous_uncached = reg;
  uncached_.store(reg);
}

void Pool::unlink_uncached(pinrail_registration_t* reg) {
  UncachedArea& area = uncached_area_of(reg);
  if (!area.is_uncached) return;
  area.is_uncached = false;
  Guard guard(pending_mutex_);
  if (area.next_uncached != nullptr) uncached_area_of(area.next_uncached).previous_uncached = area.previous_uncached;
  if (area.previous_uncached != nullptr) {
    uncached_area_of(area.previous_uncached).next_uncached = area.next_uncached;
  } else {
    uncached_.store(area.next_uncached);
  }
}

void Pool::leave(Pending* own) {
  Guard guard(pending_mutex_);
  leave_locked(own);
}

void Pool::leave_locked(Pending* own) {
  unlink_pending(own);
  if (waiters_ != 0) pending_done_.notify_all();
}

}  // namespace pinrail::grdma
