// SPDX-License-Identifier: BSD-3-Clause
// Registers ranges on the device, and makes room for them. API context. The caller holds no lock,
// because the registrar is called (R6). The calling thread may hold references of other registrations.
#include "components/mpool/grdma/grdma.h"
#include "framework/registrar/request.h"

namespace pinrail::grdma {

pinrail_registration_details_t* Pool::details_of(pinrail_registration_t* reg) const {
  char* const tail = static_cast<char*>(registrar_tail(reg));
  return reinterpret_cast<pinrail_registration_details_t*>(tail + details_offset(limits_of_registrar_.tail_size));
}

// The options that it was made with, behind its details; NULL: it was made without.
Extra* Pool::extra_of(pinrail_registration_t* reg) const {
  const size_t offset = details_offset(limits_of_registrar_.tail_size) + sizeof(pinrail_registration_details_t);
  if (reg->tail_size < offset + sizeof(Extra)) return nullptr;
  return reinterpret_cast<Extra*>(static_cast<char*>(registrar_tail(reg)) + offset);
}

// Whether it is what the options of the request ask for. Its range contains the request's.
bool Pool::is_made_so(const Request& request, pinrail_registration_t* reg) const {
  constexpr Extra kNone{-1, 0, 0, nullptr, 0, 0};
  const Extra* const extra = extra_of(reg);
  const Extra &made = extra != nullptr ? *extra : kNone, &asked = *request.extra;
  const uintptr_t base = span_of(reg).base, before = request.span.base - base;
  const auto iova_at = [](uint64_t iova, uintptr_t addr) { return iova != 0 ? iova : addr; };
  const bool is_of_same = (made.fd >= 0) == (asked.fd >= 0) &&
                          (asked.fd < 0 || (made.inode == asked.inode && made.fd_offset + before == asked.fd_offset)) &&
                          iova_at(made.iova, base) + before == iova_at(asked.iova, request.span.base);
  return is_of_same && made.argument == asked.argument && made.user_value == asked.user_value;
}

// A registration of the miss's range, with its rights, that the device does not know yet.
Status Pool::make(const Request& request, const Miss& miss, pinrail_registration_t** reg_out) {
  const size_t extra = request.extra != nullptr ? sizeof(Extra) : 0;
  const size_t tail = has_details(request) ? details_offset(limits_of_registrar_.tail_size) +
                                                 sizeof(pinrail_registration_details_t) + extra
                                           : tail_of_registrar() + own_tail_;
  pinrail_registration_t* reg;
  const Status allocated = alloc(miss.span, miss.rights, request.traits(), tail, &reg);
  if (!allocated.ok()) return allocated;
  if (miss.is_wider) Extents::mark_wider(reg, request.span);
  reg->flags = request.flags();
  if (request.extra != nullptr) *extra_of(reg) = *request.extra;
  *reg_out = reg;
  return success();
}

// It was not registered.
void Pool::discard(pinrail_registration_t* reg) {
  outside_.unlink(reg);
  host_->registrations->free(host_, reg);
}

// With a place in the budget. After an error the registration is gone.
Status Pool::register_on_device(pinrail_thread_t* thread, const Request& request, Miss* miss,
                                pinrail_registration_t* reg) {
  Status status = admit(thread, reg, &miss->tries);
  if (!status.ok()) {
    miss->reason = PINRAIL_MISS_FULL;
    discard(reg);
    return status;
  }
  status = register_with_rights(thread, request, reg);
  if (status.ok()) return status;
  miss->reason = PINRAIL_MISS_REFUSED;
  undo(reg);
  return status;
}

// The device has refused it, and no other thread has seen it: it leaves the budget and is freed.
void Pool::undo(pinrail_registration_t* reg) {
  dismiss(reg);
  discard(reg);
}

// What is wider than the request, by one call of the registrar, if there is room for it as it is; half of the limit
// stays free for what is asked for.
Status Pool::register_wider(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  if (!cache_->admit_as_it_is(reg, cache_->limits().bytes / 2)) {
    discard(reg);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  const Status status = register_range(thread, request, reg, Room::as_it_is);
  if (status.ok()) {
    if (reg->rights != request.rights()) extents_.granted_all();
    return status;
  }
  undo(reg);
  extents_.note_refused_wider(request.span, status.is_lack());
  return status;
}

// R4: with the registration's rights, or, if the registrar refuses those, with the rights that were asked for. No room
// is made for rights that it has never granted.
Status Pool::register_with_rights(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  if (reg->rights == request.rights()) {
    const Status status = register_range(thread, request, reg, Room::made);
    // What the registrar adds would be rights that no request names exactly.
    if ((config_.flags & PINRAIL_POOL_EXACT) != 0) reg->rights = request.rights();
    return status;
  }
  const Room room = extents_.has_granted_all() ? Room::made : Room::as_it_is;
  Status status = register_range(thread, request, reg, room);
  if (status.ok()) {
    extents_.granted_all();
    return status;
  }
  const bool is_refused = !status.is_lack();
  reg->rights = request.rights();
  status = register_range(thread, request, reg, Room::made);
  if (status.ok() && is_refused) extents_.note_refused_rights(request.span);
  return status;
}

// Calls the registrar for the registration's range and rights, as the options of the request say.
Status Pool::register_range(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg, Room room) {
  pinrail_register_request_t wanted = device_request(reg, PINRAIL_KIND_HOST);
  if (has_details(request)) return register_with_details(thread, request, &wanted, reg, room);
  return call_device(thread, request, &wanted, reg, room);
}

Status Pool::register_with_details(pinrail_thread_t* thread, const Request& request, pinrail_register_request_t* wanted,
                                   pinrail_registration_t* reg, Room room) {
  pinrail_registration_details_t* const details = details_of(reg);
  *details = {};
  wanted->details = details;
  const Extra* const extra = request.extra;
  if (extra != nullptr) {
    wanted->argument = extra->argument;
    wanted->iova = extra->iova;
  }
  if (extra != nullptr && extra->fd >= 0) {
    wanted->kind = PINRAIL_KIND_DMABUF;
    wanted->fd = extra->fd;
    wanted->fd_offset = extra->fd_offset;
  }
  const Status status = call_device(thread, request, wanted, reg, room);
  if (!status.ok()) return status;
  if (details->lkey == 0 && details->rkey == 0) {
    details->lkey = reg->lkey;
    details->rkey = reg->rkey;
  }
  details->iova = wanted->iova != 0 ? wanted->iova : reinterpret_cast<uintptr_t>(reg->base);
  details->user_value = extra != nullptr ? extra->user_value : 0;
  return status;
}

// Before the registrar forgets it. INVALIDATED: the memory may be another's by now (R12).
pinrail_reason_t Pool::leave_index(pinrail_registration_t* reg, pinrail_reason_t reason) {
  Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: a find saw that it is dead and removed it
  if (reason == PINRAIL_REASON_EVICTED) reasons_.ended_hook(span_of(reg), {});
  outside_.unlink(reg);
  return is_invalidated(reg) ? PINRAIL_REASON_INVALIDATED : reason;
}

}  // namespace pinrail::grdma
