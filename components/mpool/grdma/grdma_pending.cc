// SPDX-License-Identifier: BSD-3-Clause
// API context. Functions whose names end in _locked run under the pending lock (`mutex`); the others take it where they
// need it. No registrar is called. The calling thread may hold references.
#include "components/mpool/grdma/grdma_pending.h"

namespace pinrail::grdma {
namespace {

Entered entered(pinrail_status_t begun) {
  return begun == PINRAIL_ERR_NOT_FOUND ? Entered::ready : Entered::needs_memory;
}

}  // namespace

// Finds or announces. R4: more_rights of the announcement are those of the indexed entries that contain the range.
pinrail_status_t PendingCalls::look_again(pinrail_thread_t* thread, const Request& request, Pending* own,
                                          pinrail_registration_t** reg_out) {
  pinrail_announcement_t& announcement = own->announcement;
  announcement.base = request.span.base;
  announcement.length = request.span.length();
  announcement.access = request.access();
  announcement.more_rights = 0;
  return rcache_.ops.find_or_announce(rcache_.module, thread, &announcement, reg_out);
}

// If the list is empty, the lock is not needed: the call is listed first and looks afterwards, so a call that was there
// before has put its registration into the index, or is seen.
Entered PendingCalls::enter(pinrail_thread_t* thread, const Request& request, Pending* own,
                            pinrail_registration_t** reg_out) {
  own->span = request.span;
  own->traits = request.traits();
  own->rights = request.rights();
  Pending* none_pending = nullptr;
  if (!first_.compare_exchange_strong(none_pending, own)) {
    Guard guard(mutex);
    return enter_locked(thread, request, own, reg_out);
  }
  const pinrail_status_t begun = look_again(thread, request, own, reg_out);
  const uint32_t more_rights = own->announcement.more_rights;
  if (begun != PINRAIL_SUCCESS && more_rights == 0) return entered(begun);
  Guard guard(mutex);
  if (begun == PINRAIL_SUCCESS) leave_locked(own);
  own->rights |= more_rights;
  return begun == PINRAIL_SUCCESS ? Entered::found : entered(begun);
}

// As enter(), while other calls are listed. If the call that it waited for fails, the call goes on by itself.
Entered PendingCalls::enter_locked(pinrail_thread_t* thread, const Request& request, Pending* own,
                                   pinrail_registration_t** reg_out) {
  for (bool may_wait = true;;) {
    own->rights = request.rights();
    Pending* head = first_.load();
    const pinrail_status_t begun = look_again(thread, request, own, reg_out);
    if (begun == PINRAIL_SUCCESS) return Entered::found;
    Pending* other = may_wait ? find_covering_locked(*own) : nullptr;
    if (other != nullptr) {
      rcache_.ops.withdraw(rcache_.module, &own->announcement);
      wait_for_locked(other);
      may_wait = false;
      continue;
    }
    own->rights |= own->announcement.more_rights;  // R4
    own->next = head;
    if (first_.compare_exchange_strong(head, own)) return entered(begun);
    rcache_.ops.withdraw(rcache_.module,
                         &own->announcement);  // a call has entered without the lock: this one may have to wait for it
  }
}

// Sleeps, with the lock given back, until the other call has left. A ticket names it, because another call may have its
// address later.
void PendingCalls::wait_for_locked(Pending* other) {
  if (other->ticket == 0) other->ticket = ++last_ticket_;
  const uint64_t ticket = other->ticket;
  ++waiters_;
  while (is_listed_locked(ticket)) done_.wait(mutex);
  --waiters_;
}

// A listed call whose registration will answer this one (R5). NULL: there is none.
Pending* PendingCalls::find_covering_locked(const Pending& own) const {
  for (Pending* other = first_.load(); other != nullptr; other = other->next) {
    if (other->traits != own.traits) continue;
    const bool same =
        other->rights == own.rights && other->span.base == own.span.base && other->span.end == own.span.end;
    const bool covers = other->span.contains(own.span) && (other->rights & own.rights) == own.rights;
    if (is_exact_ ? same : covers) return other;
  }
  return nullptr;
}

bool PendingCalls::is_listed_locked(uint64_t ticket) const {
  for (const Pending* other = first_.load(); other != nullptr; other = other->next) {
    if (other->ticket == ticket) return true;
  }
  return false;
}

void PendingCalls::unlink_locked(Pending* own) {
  Pending* before = first_.load();
  if (before == own) {
    // release: a hook that finds the list empty finds what this call has inserted.
    first_.store(own->next, std::memory_order_release);
    return;
  }
  while (before != nullptr && before->next != own) before = before->next;
  if (before != nullptr) before->next = own->next;
}

// Takes the call off the list and wakes those that wait.
void PendingCalls::leave(Pending* own) {
  Guard guard(mutex);
  leave_locked(own);
}

void PendingCalls::leave_locked(Pending* own) {
  unlink_locked(own);
  if (waiters_ != 0) done_.notify_all();
}

}  // namespace pinrail::grdma
