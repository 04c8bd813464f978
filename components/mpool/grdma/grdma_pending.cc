// SPDX-License-Identifier: BSD-3-Clause
// Register calls under way: equal ones wait for each other, and events that overtake them are noticed (R5, R13).
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Begins a registration, unless the index has it by now: then true, with a reference. Waits once for a call under way
// that will cover this one; if that one fails, goes on by itself.
bool Pool::enter(pinrail_thread_t* thread, const pinrail_mpool_request_t& request, Pending* own,
                 pinrail_registration_t** reg_out) {
  const pinrail_rcache_ops_t* index = rcache_.ops;
  own->span = Span::of(request.addr, request.length);
  own->traits = request.traits;
  own->rights = request.rights;
  Guard guard(pending_mutex_);
  bool may_wait = true;
  for (;;) {
    if (index->find_locked(rcache_.module, thread, request.addr, request.length, request.rights, request.traits,
                           reg_out) == PINRAIL_SUCCESS) {
      return true;
    }
    const Pending* other = may_wait ? covering_pending(*own) : nullptr;
    if (other == nullptr) break;
    const uint64_t ticket = other->ticket;
    while (is_pending(ticket)) pending_done_.wait(pending_mutex_);
    may_wait = false;
  }
  if ((config_.flags & PINRAIL_POOL_EXACT) == 0) {  // R4
    own->rights |= index->containing_rights(rcache_.module, request.addr, request.length, request.traits);
  }
  own->ticket = ++tickets_;
  own->next = pending_;
  pending_ = own;
  return false;
}

const Pending* Pool::covering_pending(const Pending& own) const {
  const bool exact = (config_.flags & PINRAIL_POOL_EXACT) != 0;
  for (const Pending* other = pending_; other != nullptr; other = other->next) {
    if (other->traits != own.traits) continue;
    const bool same =
        other->rights == own.rights && other->span.base == own.span.base && other->span.end == own.span.end;
    const bool covers = other->span.contains(own.span) && (other->rights & own.rights) == own.rights;
    if (exact ? same : covers) return other;
  }
  return nullptr;
}

bool Pool::is_pending(uint64_t ticket) const {
  for (const Pending* other = pending_; other != nullptr; other = other->next) {
    if (other->ticket == ticket) return true;
  }
  return false;
}

void Pool::unlink_pending(Pending* own) {
  for (Pending** at = &pending_; *at != nullptr; at = &(*at)->next) {
    if (*at != own) continue;
    *at = own->next;
    return;
  }
}

// Puts the registration into the index, with its maker's reference, unless an event overtook it. The check and the
// insert are one step for invalidate_range_hook, which marks under the same lock before it searches the index.
Published Pool::publish(const pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg) {
  const uint64_t counting = is_kept(reg->flags) ? state::kPerThread : 0;
  Guard guard(pending_mutex_);
  if (own->raced) {
    own->raced = false;  // for the next try
    rcache_.ops->cancel(rcache_.module);
    state::set(reg, counting | state::kDead);
    return Published::raced;
  }
  touch(reg, cache_->epoch());
  const bool in_cell = counting != 0 && references::count(thread, reg, 1);
  state::set(reg, counting | state::kIndexed, in_cell ? 0 : 1);
  if (rcache_.ops->insert(rcache_.module, reg, displaced_hook, this) == PINRAIL_SUCCESS) return Published::indexed;
  state::set(reg, counting | state::kDead);
  return Published::alone;
}

void Pool::leave(Pending* own) {
  Guard guard(pending_mutex_);
  unlink_pending(own);
  pending_done_.notify_all();
}

}  // namespace pinrail::grdma
