// SPDX-License-Identifier: BSD-3-Clause
// A miss, in one direction: search and announce -> a place in the budget -> the device -> publish. API context. The
// caller holds no lock, because the registrar is called. The calling thread may hold references, and gets one more on
// success.
#include <utility>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Registers the range, and what may be registered around it, unless the index answers by now. Whatever keeps the wider
// part out (limits, the device, an event, the monitors), the request goes on as if it had never been (R8). What answers
// a persistent request and was made with other options does not serve it: it gets a registration of its own.
Status Pool::miss(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  Miss miss;
  Status status = announce(thread, request, &miss, reg_out);
  if (status.ok() && request.extra != nullptr && !is_made_so(request, *reg_out)) {
    deregister(thread, handle_of(*reg_out)).ignore();
    return register_own(thread, request, reg_out);
  }
  if (status.ok()) count_answer(thread, request, *reg_out);
  if (!miss.is_announced) return status;
  miss.cause = why_missed(request);
  set_span(request, extent_of(request), &miss);
  status = register_indexed(thread, request, &miss, reg_out);
  if (!status.ok() && miss.is_wider) {
    set_span(request, request.span, &miss);
    status = register_indexed(thread, request, &miss, reg_out);
  }
  withdraw(&miss);
  record_miss(thread, request, miss, status);
  return status;
}

// What the call registers from now on.
void Pool::set_span(const Request& request, const Span& span, Miss* miss) {
  miss->is_wider = span.length() != request.span.length();
  miss->rights = extents_.rights_for(request.span, request.rights());
  miss->reason = miss->cause;
  if (miss->span.length() == span.length()) return;
  miss->span = span;
  rcache_.ops.reannounce(rcache_.module, &miss->announcement, span.base, span.length());
}

// The request, and the part of the window around it that may be registered with it.
Span Pool::extent_of(const Request& request) {
  const Span& asked = request.span;
  const bool may_be_wider = extents_.is_on() && !request.has(PINRAIL_FLAG_PERSISTENT) && request.extra == nullptr &&
                            (request.traits() & PINRAIL_TRAIT_ON_DEMAND) == 0;
  if (!may_be_wider) return asked;
  Span window = extents_.window_for(asked);
  if (window.length() == asked.length()) return asked;
  host_->pools->own_pages_around(host_, asked.base, asked.length(), &window.base, &window.end);
  const Span extent{(window.base + page_mask_) & ~page_mask_, window.end & ~page_mask_};
  const size_t most = limits_of_registrar_.max_length;
  return most != 0 && extent.length() > most ? asked : extent;
}

// Why no registration answered.
pinrail_miss_reason_t Pool::why_missed(const Request& request) {
  if (!settings_.leave_pinned || request.has(PINRAIL_FLAG_PERSISTENT)) return PINRAIL_MISS_NOT_KEPT;
  const Span& span = request.span;
  const pinrail_miss_reason_t ended = reasons_.why_ended(span);
  if (ended != PINRAIL_MISS_COLD || rcache_.ops.visit_all == nullptr) return ended;
  const bool is_exact = (config_.flags & PINRAIL_POOL_EXACT) != 0;
  bool lacks_rights = false;
  const size_t overlapping = visit_all(span, [&](const pinrail_registration_t* reg) {
    const Span own = span_of(reg);
    const bool has_span = own.contains(span) && (!is_exact || span.contains(own));
    lacks_rights = lacks_rights || (has_span && reg->traits == request.traits() && is_indexed(reg));
  });
  if (overlapping == 0) return ended;
  return lacks_rights ? PINRAIL_MISS_RIGHTS : PINRAIL_MISS_SPAN;
}

void Pool::record_miss(pinrail_thread_t* thread, const Request& request, const Miss& miss, const Status& status) {
  pinrail_mpool_event_t event{};
  event.kind = PINRAIL_EVENT_MISS;
  event.base = request.span.base;
  event.length = request.span.length();
  event.reason = miss.reason;
  event.status = status.code();
  host_->pools->record_miss(config_.pool, thread, &event);
}

// As find_or_announce().
pinrail_status_t Pool::announce(pinrail_thread_t* thread, const Request& request, Miss* miss,
                                pinrail_registration_t** reg_out) {
  pinrail_announcement_t& announcement = miss->announcement;
  miss->span = request.span;
  announcement.base = request.span.base;
  announcement.length = request.span.length();
  announcement.access = request.access();
  announcement.more_rights = extents_.rights_for(request.span, request.rights()) & ~request.rights();
  announcement.waits_for = 0;
  announcement.flags = request.flags() & PINRAIL_FLAG_PERSISTENT;
  // What is not kept, and what is persistent, ends with its last reference. Hits that the library may answer alone need
  // no equal range.
  const bool is_kept = settings_.leave_pinned && !request.has(PINRAIL_FLAG_PERSISTENT);
  const bool is_quick = (config_.flags & PINRAIL_POOL_EXACT) == 0;
  announcement.marks = (is_kept ? 0 : state::kTransient) | (is_quick ? state::kQuick : 0);
  const pinrail_status_t status = find_or_announce(thread, &announcement, reg_out);
  miss->is_announced = status == PINRAIL_ERR_NOT_FOUND;
  return status;
}

// Ends the announcement, if it lasts. Returns whether an event has overtaken it.
bool Pool::withdraw(Miss* miss) {
  return std::exchange(miss->is_announced, false) && Base::withdraw(&miss->announcement);
}

// Whether an event will end what the call registers. It is announced. What was reported near a wider part may be there
// still, and not be reported again. Monitors know memory by its mapping, and a dmabuf by none: it is kept only where
// the program reports all memory, which then counts as covered anywhere.
bool Pool::may_keep(const Request& request, const Miss& miss) const {
  constexpr Span kNowhere{UINTPTR_MAX - 1, UINTPTR_MAX};
  const bool is_dmabuf = request.extra != nullptr && request.extra->fd >= 0;
  if (miss.is_wider && shortcut::of(host_)->was_reported(miss.span.base, miss.span.length())) return false;
  return is_covered(is_dmabuf ? kNowhere : miss.span);
}

// The call is announced. Its announcement has ended on success, and lasts after an error. What is wider than the
// request is tried once, and an event that overtakes it does not count (R13).
Status Pool::register_indexed(pinrail_thread_t* thread, const Request& request, Miss* miss,
                              pinrail_registration_t** reg_out) {
  constexpr int kRetriesAfterRace = 3;  // of a range that an event hits while it is being registered (R13)
  for (int tries = 0;; ++tries) {
    if (!may_keep(request, *miss)) {
      if (miss->is_wider) return PINRAIL_ERR_NOT_SUPPORTED;
      // Memory that can become stale without an event is never in the index, not even while it is held.
      withdraw(miss);
      miss->rights = request.rights();
      if (settings_.leave_pinned) miss->reason = PINRAIL_MISS_UNCOVERED;
      const Status status = register_uncached(thread, request, miss, reg_out);
      if (status.ok()) count_relaxed(&uncovered_);
      return status;
    }
    Status status = make(request, *miss, reg_out);
    if (!status.ok()) return status;
    status = miss->is_wider ? register_wider(thread, request, *reg_out)
                            : register_on_device(thread, request, miss, *reg_out);
    if (!status.ok()) return status;
    if (publish(thread, miss, *reg_out)) return success();
    give_back_one(thread, *reg_out, PINRAIL_REASON_INVALIDATED);
    count_relaxed(&races_);
    miss->reason = PINRAIL_MISS_RACED;
    if (miss->is_wider || tries == kRetriesAfterRace) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  }
}

// For the caller alone: it is not in the index, and no call waits for it.
Status Pool::register_own(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  Miss miss;
  miss.span = request.span;
  miss.rights = request.rights();
  const Status status = register_uncached(thread, request, &miss, reg_out);
  record_miss(thread, request, miss, status);
  return status;
}

// A registration that is born dead: its last drop gives it back.
Status Pool::register_uncached(pinrail_thread_t* thread, const Request& request, Miss* miss,
                               pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg;
  Status status = make(request, *miss, &reg);
  if (!status.ok()) return status;
  if (!arena::is_number(arena::number_of(reg))) {
    host_->registrations->free(host_, reg);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  outside_.link(reg);
  status = register_on_device(thread, request, miss, reg);
  if (!status.ok()) return status;
  state::publish(reg, state::kDead);
  *reg_out = reg;
  return success();
}

// Puts the registration into the index, with its maker's reference, unless an event overtook it (grdma/G6): then it is
// still this thread's alone, and false is returned.
bool Pool::publish(pinrail_thread_t* thread, Miss* miss, pinrail_registration_t* reg) {
  Displaced displaced{this};
  const pinrail_status_t published =
      rcache_.ops.publish(rcache_.module, thread, &miss->announcement, reg, displaced_hook, &displaced);
  if (published == PINRAIL_SUCCESS) {
    miss->is_announced = false;
    wake_waiters();
  } else if (published != PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) {
    // The index did not take it. It is in reach of events outside of the index before its announcement ends.
    outside_.link(reg);
    state::publish(reg, state::kDead);
    if (withdraw(miss)) mark_invalidated_hook(reg);  // this thread holds it, so it is not deregistered before
  }
  for (uint32_t next = displaced.first; next != 0;) {
    pinrail_registration_t* const each = arena::numbered(shortcut::of(host_)->chunks, next);
    next = __atomic_load_n(&each->used, __ATOMIC_RELAXED);
    give_back_one(thread, each, PINRAIL_REASON_RELEASED);
  }
  return published != PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

}  // namespace pinrail::grdma
