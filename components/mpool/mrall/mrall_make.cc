// SPDX-License-Identifier: BSD-3-Clause
// The maker: makes the index equal to what is mapped. It runs on the process's gc thread, one round after another; API
// context, no lock is held across a call of the registrar or an allocation.
#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "base/registration/shortcut.h"
#include "components/mpool/mrall/mrall.h"
#include "framework/registrar/request.h"

namespace pinrail::mrall {
namespace {

// The status of a range that is not registrable.
pinrail_status_t status_of(pinrail_left_out_reason_t reason) {
  if (reason == PINRAIL_LEFT_OUT_NONE) return PINRAIL_ERR_NOT_FOUND;
  return reason == PINRAIL_LEFT_OUT_PROTECTED ? PINRAIL_ERR_PERM : PINRAIL_ERR_NOT_SUPPORTED;
}

bool is_held_by_maker_alone(const pinrail_registration_t* reg) { return references_of(reg) == 1; }

}  // namespace

int Pool::work_entry(void* pool, pinrail_thread_t* thread) {
  auto* const self = static_cast<Pool*>(pool);
  self->work(thread);
  return self->work_.is_behind() ? 1 : 0;  // what is dead and held is given back by its last drop
}

// One round. Events that come meanwhile, also those that the round itself causes, wake the thread for another one,
// after the other members' turns: there may be no end of it. What a failure leaves is looked at later (work_entry()).
void Pool::work(pinrail_thread_t* thread) {
  drain(thread, SIZE_MAX);
  Ranges touched;
  Demand* demands = nullptr;
  // The mappings are read anew although nothing says that they have changed: for what no monitor reports.
  const bool is_due = settings_.rescan_ms != 0 && now_ms_hook() >= next_rescan_ms_;
  if (is_due) next_rescan_ms_ = now_ms_hook() + settings_.rescan_ms;
  if (!work_.begin_round(is_due, &touched, &demands)) return;
  const Status status = guarded([&] { return make_round(thread, touched, demands, is_due); });
  for (Demand* at = demands; !status.ok() && at != nullptr; at = at->next) at->status = status;
  if (status.ok()) touched.count = 0;  // what a round that fails was to look at is queued again
  work_.end_round(demands, touched);
  drain(thread, SIZE_MAX);
}

// One round: the mappings are read once, after its work was taken (mrall/W1).
Status Pool::make_round(pinrail_thread_t* thread, const Ranges& touched, Demand* demands, bool is_rescan) {
  is_rescan_ = false;
  const Status read = maps_.read();
  if (!read.ok()) return read;
  for (size_t i = 0; i < touched.count; ++i) update(thread, touched.spans[i]);
  for (Demand* at = demands; at != nullptr; at = at->next) at->status = answer(thread, *at);
  is_rescan_ = is_rescan;
  if (is_rescan) update(thread, kEverything);
  return success();
}

// Registers what is mapped in the span and not registered, and ends what is registered and not mapped so.
void Pool::update(pinrail_thread_t* thread, const Span& span) {
  if (!is_rescan_) left_out_.erase(span);
  judge_held(thread, span);
  const std::vector<Line>& lines = maps_.lines();
  uintptr_t end_of_last = span.base;
  for (size_t i = maps_.first_above(span.base); i < lines.size() && lines[i].span.base < span.end; ++i) {
    const Line& line = lines[i];
    if (is_rescan_ && line.span.base > end_of_last) left_out_.erase({end_of_last, line.span.base});
    end_of_last = line.span.end;
    const Span part{std::max(line.span.base, span.base), std::min(line.span.end, span.end)};
    if (line.is_registrable && line.span.length() > memory_bytes_) {
      left_out_.set(part, {PINRAIL_LEFT_OUT_LIMIT, PINRAIL_ERR_OUT_OF_RESOURCE});
      const DropAtEnd at_end{this, thread, &held_};
      find_all(thread, part, &held_);
      for (const pinrail_registration_t* reg : held_) left_out_.erase(span_of(reg));  // a demand has registered it
    } else if (line.is_registrable) {
      register_line(thread, part, line.rights & most_rights_);
    } else {
      left_out_.set(part, {line.reason, status_of(line.reason)});
    }
  }
}

// Kills what is registered in the span and not mapped, or with more rights than its mapping has. No event may have said
// so: mprotect is none. Their ranges are queued, as after an event: what remains of them is registered in a round of
// its own.
void Pool::judge_held(pinrail_thread_t* thread, const Span& span) {
  find_all(thread, span, &held_);
  for (pinrail_registration_t* reg : held_) {
    uint32_t rights = 0;
    pinrail_left_out_reason_t reason;
    const bool is_right = maps_.is_registrable(span_of(reg), &rights, &reason) && (reg->rights & ~rights) == 0;
    if (is_right) continue;
    Guard guard(work_.mutex);
    if (rcache_.ops.remove(rcache_.module, reg) != PINRAIL_SUCCESS) continue;
    const bool is_mapped = rights != 0 || reason != PINRAIL_LEFT_OUT_NONE;  // all of it is memory of this process still
    if (!is_mapped) mpool::mark_invalidated_hook(reg);
    give_up_hook(reg, 1);
    work_.touch_locked_hook(span_of(reg));
  }
  drop_all(thread, &held_);
}

// R7: whether a request that has failed so may succeed after what is idle and overlaps its span was given back.
bool Pool::can_make_room(pinrail_thread_t* thread, const Span& span, Status status, const LeftOut::Why& why) {
  if (!status.is_lack() || why.reason == PINRAIL_LEFT_OUT_NONE) return false;
  uint64_t idle_bytes = 0, idle_count = 0;
  find_all(thread, span, &held_);
  for (const pinrail_registration_t* reg : held_) {
    if (!is_held_by_maker_alone(reg)) continue;
    idle_bytes += reg->length;
    ++idle_count;
  }
  drop_all(thread, &held_);
  return idle_count != 0 &&
         (why.reason != PINRAIL_LEFT_OUT_LIMIT || cache_->has_room_without(idle_bytes, idle_count, span.length()));
}

// Gives back what is idle and overlaps the span, and extends around_out by its ranges. They are not queued: the caller
// registers them anew.
void Pool::give_back_idle(pinrail_thread_t* thread, const Span& span, Span* around_out) {
  find_all(thread, span, &held_);
  for (pinrail_registration_t* reg : held_) {
    if (!is_held_by_maker_alone(reg)) continue;
    Guard guard(work_.mutex);
    if (rcache_.ops.remove(rcache_.module, reg) != PINRAIL_SUCCESS) continue;
    give_up_hook(reg, 1);
    count_relaxed(&evictions);
    *around_out = {std::min(around_out->base, span_of(reg).base), std::max(around_out->end, span_of(reg).end)};
  }
  drop_all(thread, &held_);
}

// Registers what no registration with these rights covers yet.
void Pool::register_line(pinrail_thread_t* thread, const Span& span, uint32_t rights) {
  {
    const DropAtEnd at_end{this, thread, &held_};
    find_all(thread, span, &held_);
    covered_.clear();
    for (const pinrail_registration_t* reg : held_) {
      if ((rights & ~reg->rights) == 0) covered_.push_back(span_of(reg));
    }
  }
  std::sort(covered_.begin(), covered_.end(), [](const Span& a, const Span& b) { return a.base < b.base; });
  uintptr_t at = span.base;
  for (const Span& each : covered_) {
    if (each.base > at) register_gap(thread, {at, std::min(each.base, span.end)}, rights);
    at = std::max(at, each.end);
  }
  if (at < span.end) register_gap(thread, {at, span.end}, rights);
}

// Registers the gap in pieces that end at multiples of the largest piece's size. What was refused before is left alone
// until an event or a demand touches it; a rescan finds what a limit kept out before. An end that is less than what the
// registrar takes is left alone, too: the rest of that may be another mapping, or none.
void Pool::register_gap(pinrail_thread_t* thread, const Span& gap, uint32_t rights) {
  constexpr LeftOut::Why kTooSmall{PINRAIL_LEFT_OUT_REFUSED, PINRAIL_ERR_NOT_SUPPORTED};
  const size_t step = settings_.largest_piece;
  Span whole = gap;
  if (!round_in(&whole, page_mask_ + 1)) whole.base = whole.end;
  if (gap.base < whole.base) left_out_.set({gap.base, whole.base}, kTooSmall);
  if (whole.end < gap.end) left_out_.set({whole.end, gap.end}, kTooSmall);
  for (uintptr_t at = whole.base; at < whole.end;) {
    const uintptr_t next_multiple = at > UINTPTR_MAX - step ? whole.end : at - at % step + step;
    const Span piece{at, std::min(whole.end, next_multiple)};
    at = piece.end;
    LeftOut::Why why{};
    const bool was_refused = left_out_.find(piece, &why) &&
                             (why.reason == PINRAIL_LEFT_OUT_UNSEEN || why.reason == PINRAIL_LEFT_OUT_REFUSED);
    if (is_rescan_ && was_refused) continue;
    if (make(thread, piece, rights, &why).ok()) {
      left_out_.erase(piece);
    } else if (why.reason != PINRAIL_LEFT_OUT_NONE) {
      left_out_.set(piece, why);
    }
  }
}

// Sees to it that one registration covers the demand. The pieces that exist stay, if the new one does not contain them.
Status Pool::answer(pinrail_thread_t* thread, const Demand& demand) {
  if (demand.span.length() == 0) return success();
  if (demand.span.end == UINTPTR_MAX) {
    update(thread, demand.span);
    return success();
  }
  judge_held(thread, demand.span);
  uint32_t rights = 0;
  pinrail_left_out_reason_t reason;
  if (!maps_.is_registrable(demand.span, &rights, &reason)) return status_of(reason);
  rights &= most_rights_;
  if ((demand.rights & ~rights) != 0) return PINRAIL_ERR_PERM;
  find_all(thread, demand.span, &held_);
  const bool is_covered = std::any_of(held_.begin(), held_.end(), [&](const pinrail_registration_t* reg) {
    return span_of(reg).contains(demand.span) && (demand.rights & ~reg->rights) == 0;
  });
  drop_all(thread, &held_);
  if (is_covered) return success();
  Span wanted = demand.is_exact ? demand.span : maps_.extend(demand.span, rights, settings_.max_reg_size);
  round_in(&wanted, page_mask_ + 1);  // the demand is within whole pages
  const size_t most = limits_of_registrar_.max_length;
  if (most != 0 && wanted.length() > most) wanted = demand.span;
  LeftOut::Why why{};
  Status status = make(thread, wanted, rights, &why);
  if (!status.ok() && wanted.length() != demand.span.length()) status = make(thread, demand.span, rights, &why);
  if (!status.ok() && can_make_room(thread, demand.span, status, why)) {
    status = make_instead(thread, demand.span, rights, &why);
  }
  if (status.ok()) left_out_.erase(demand.span);
  return status.ok() || why.reason != PINRAIL_LEFT_OUT_NONE ? status : success();  // an event was faster: ask again
}

// R7, R8: requests that lie across pieces get registrations that overlap, and these use up what could serve this one.
// What overlaps it makes room, and the rest of that is registered in pieces again; without memory for that, by the next
// round.
Status Pool::make_instead(pinrail_thread_t* thread, const Span& span, uint32_t rights, LeftOut::Why* why_out) {
  Span around = span;
  Status status = success();
  const Status updated = guarded([&] {
    give_back_idle(thread, span, &around);
    status = make(thread, span, rights, why_out);
    update(thread, around);
  });
  if (updated.ok()) return status;
  Guard guard(work_.mutex);
  work_.touch_locked_hook(around);
  return updated;
}

// Makes one registration and puts it into the index. why_out: why not; the reason NONE means that an event was faster.
Status Pool::make(pinrail_thread_t* thread, const Span& span, uint32_t rights, LeftOut::Why* why_out) {
  pinrail_registration_t* reg;
  *why_out = {PINRAIL_LEFT_OUT_REFUSED, PINRAIL_ERR_OUT_OF_RESOURCE};
  const Status allocated = alloc(span, rights, 0, limits_of_registrar_.tail_size, &reg);
  if (!allocated.ok()) return allocated;
  if (!cache_->admit_as_it_is(reg, UINT64_MAX)) {
    const bool may_fit = span.length() <= cache_->limits().bytes;
    *why_out = {PINRAIL_LEFT_OUT_LIMIT, may_fit ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_OUT_OF_RESOURCE};
    host_->registrations->free(host_, reg);
    return why_out->status;
  }
  const Status status = make_admitted(thread, reg, why_out);
  if (status.ok()) return status;
  dismiss(reg);
  host_->registrations->free(host_, reg);
  return status;
}

Status Pool::make_admitted(pinrail_thread_t* thread, pinrail_registration_t* reg, LeftOut::Why* why_out) {
  const Span span = span_of(reg);
  // A monitor may have gone blind. What is reported before it is gone would be registered again, and nothing would end
  // that.
  const bool is_seen = host_->monitor_covers(host_, span.base, span.length()) != 0;
  if (!is_seen || !shortcut::of(host_)->is_told_afterwards()) {
    *why_out = {PINRAIL_LEFT_OUT_UNSEEN, PINRAIL_ERR_NOT_SUPPORTED};
    count_relaxed(&uncovered_);
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  Status status = call_registrar(thread, reg);
  if (!status.ok()) {
    *why_out = {PINRAIL_LEFT_OUT_REFUSED, status.code()};
    return status;
  }
  *why_out = {PINRAIL_LEFT_OUT_NONE, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE};
  status = publish(thread, reg);
  if (!status.ok()) deregister_from_device(thread, reg, PINRAIL_REASON_INVALIDATED);
  return status;
}

Status Pool::call_registrar(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  drain(thread, SIZE_MAX);
  const Status status = register_as_asked(thread, reg);
  const bool has_atomics = (reg->rights & PINRAIL_ACCESS_REMOTE_ATOMIC) != 0;
  if (status.ok() || status.is_lack() || !has_atomics) return status;
  return register_without_atomics(thread, reg) ? success() : status;
}

// The registrar refused the rights, or the memory was unmapped meanwhile. Whether it is the atomics that it refuses is
// found out on a page of the pool's own; then it is not asked for them again.
bool Pool::register_without_atomics(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!has_asked_for_atomics_) {
    if (!ask_on_own_page(thread, PINRAIL_RIGHTS_MASK & ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC}).ok()) return false;
    const Status with_atomics = ask_on_own_page(thread, PINRAIL_RIGHTS_MASK);
    if (with_atomics.is_lack()) return false;  // that says nothing of the rights
    has_asked_for_atomics_ = true;
    if (with_atomics.ok()) return false;
    most_rights_ = PINRAIL_RIGHTS_MASK & ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC};
  }
  if ((most_rights_ & PINRAIL_ACCESS_REMOTE_ATOMIC) != 0) return false;
  reg->rights &= most_rights_;
  return register_as_asked(thread, reg).ok();
}

// The registrar may add rights that the mapping does not permit: then the registration would seem to be wrong.
Status Pool::register_as_asked(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const pinrail_register_request_t request = device_request(reg, PINRAIL_KIND_HOST);
  const pinrail_status_t status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
  reg->rights = request.rights;
  return status;
}

// Registers memory that cannot go away with these rights. The registration ends at once.
Status Pool::ask_on_own_page(pinrail_thread_t* thread, uint32_t rights) {
  pinrail_registration_t* reg;
  const size_t page = page_mask_ + 1;
  const OwnPages memory(2 * page);
  if (!memory.is_mapped()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(memory.at()) + page - 1) & ~page_mask_;
  Status status = alloc(Span::of(aligned, page), rights, 0, limits_of_registrar_.tail_size, &reg);
  if (status.ok()) {
    status = register_as_asked(thread, reg);
    if (status.ok()) deregister_from_device(thread, reg, PINRAIL_REASON_RELEASED);
    host_->registrations->free(host_, reg);
  }
  return status;
}

// Puts it into the index, unless an event has touched its range since the round began (mrall/A2).
Status Pool::publish(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  pinrail_announcement_t announcement{};
  announcement.base = span_of(reg).base;
  announcement.length = reg->length;
  announcement.access = reg->rights;
  announcement.waits_for = PINRAIL_WAITS_FOR_NONE;
  announcement.marks = state::kQuick;
  pinrail_registration_t* found = nullptr;
  const Status begun = rcache_.ops.find_or_announce(rcache_.module, thread, &announcement, &found);
  if (begun.ok()) {
    deregister(thread, handle_of(found)).ignore();
    return PINRAIL_ERR_BUSY;  // it is registered already
  }
  if (!begun.is(PINRAIL_ERR_NOT_FOUND)) return begun;
  const Status status = publish_announced(thread, &announcement, reg);
  if (!status.ok()) Status(rcache_.ops.withdraw(rcache_.module, &announcement)).ignore();
  return status;
}

Status Pool::publish_announced(pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                               pinrail_registration_t* reg) {
  {
    Guard guard(work_.mutex);
    if (work_.was_touched_locked(span_of(reg))) {
      count_relaxed(&races_);
      return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    }
    const Status status = rcache_.ops.publish(rcache_.module, thread, announcement, reg, displaced_hook, this);
    if (!status.ok()) return status;
  }
  return deregister(thread, handle_of(reg));  // the maker keeps no reference
}

}  // namespace pinrail::mrall
