// SPDX-License-Identifier: BSD-3-Clause
// Registers ranges on the device, and makes room for them. API context. The caller holds no lock,
// because the registrar is called (R6). The calling thread may hold references of other registrations.
#include <unistd.h>

#include <utility>

#include "components/mpool/grdma/grdma.h"
#include "framework/mpool/device_request.h"
#include "framework/registrar/request.h"

namespace pinrail::grdma {
// The allocation that a registration of GPU memory is of. It lies behind the registrar's tail and not in the area, so
// that registrations of host memory, which are many, do not pay eight bytes for it.
uint64_t& Pool::buffer_id_of(pinrail_registration_t* reg) const {
  return *reinterpret_cast<uint64_t*>(static_cast<char*>(registrar_tail(reg)) + tail_of_registrar());
}

pinrail_registration_details_t* Pool::details_of(pinrail_registration_t* reg) const {
  char* const tail = static_cast<char*>(registrar_tail(reg));
  return reinterpret_cast<pinrail_registration_details_t*>(tail + details_offset(limits_of_registrar_.tail_size));
}

// A registration of the miss's range, with its rights, that the device does not know yet.
Status Pool::make(const Request& request, const Miss& miss, pinrail_registration_t** reg_out) {
  const size_t own_tail = knows_gpu_ != nullptr ? sizeof(request.buffer_id) : 0;
  const size_t tail = has_details(request)
                          ? details_offset(limits_of_registrar_.tail_size) + sizeof(pinrail_registration_details_t)
                          : tail_of_registrar() + own_tail;
  pinrail_registration_t* reg;
  const Status allocated = host_->registrations->alloc(host_, tail, sizeof(Area), &reg);
  if (!allocated.ok()) return allocated;
  if (!arena::is_number(arena::number_of(reg))) {
    host_->registrations->free(host_, reg);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  set_range(reg, miss.span, config_.pool, request.traits());
  reg->rights = miss.rights;
  if (miss.is_wider) Extents::mark_wider(reg, request.span);
  reg->flags = request.flags();
  area_of(reg).owner = number_;
  area_of(reg).place = Registrations::kNowhere;
  if (knows_gpu_ != nullptr) buffer_id_of(reg) = request.buffer_id;
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
  Status status = admit(thread, miss, reg);
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

// The device has refused it.
void Pool::undo(pinrail_registration_t* reg) {
  cache_->begin_release(1);
  cache_->dismiss(&reg, 1);
  discard(reg);
}

// What is wider than the request, if there is room for it as it is, by one call of the registrar.
Status Pool::register_wider(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  if (!cache_->admit_wider(reg)) {
    discard(reg);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  const Status status = register_range(thread, request, reg, Room::as_it_is);
  if (status.ok()) {
    if (reg->rights != request.rights()) extents_.granted_all();
    return status;
  }
  undo(reg);
  const bool lacks_room = status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  extents_.refused_wider(request.span, lacks_room);
  return status;
}

// R4: with the registration's rights, or, if the registrar refuses those, with the rights that were asked for. No room
// is made for rights that it has never granted.
Status Pool::register_with_rights(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  if (reg->rights == request.rights()) return register_range(thread, request, reg, Room::made);
  const Room room = extents_.has_granted_all() ? Room::made : Room::as_it_is;
  Status status = register_range(thread, request, reg, room);
  if (status.ok()) {
    extents_.granted_all();
    return status;
  }
  reg->rights = request.rights();
  status = register_range(thread, request, reg, Room::made);
  if (status.ok()) extents_.refused_rights(request.span);
  return status;
}

// Gets the registration its place in the budget, if need be at the cost of idle ones (R8).
Status Pool::admit(pinrail_thread_t* thread, Miss* miss, pinrail_registration_t* reg) {
  for (;;) {
    Victim victim;
    switch (cache_->admit(this, reg, &miss->tries, &victim)) {
      case Admission::admitted:
        if (victim.reg == nullptr) return success();
        deregister_from_device(thread, victim.reg, PINRAIL_REASON_EVICTED);
        host_->registrations->free(host_, victim.reg);
        if (settings_.empty_cache) evict_all(thread);
        return success();
      case Admission::evict_first:
        give_back_victim(thread, victim);
        if (settings_.empty_cache) evict_all(thread);
        break;
      case Admission::release_near:
        miss->tries.ignores_releases = drain_all(thread) == 0 && !wait_for_release(thread);
        break;
      case Admission::nothing_idle: return no_room_status(reg);
      case Admission::never: report_limit(reg); return PINRAIL_ERR_OUT_OF_RESOURCE;
    }
  }
}

// Calls the registrar for the registration's range and rights, as the kind of memory that this pool is of, or as the
// options of the request say.
Status Pool::register_range(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg, Room room) {
  pinrail_register_request_t wanted = mpool::device_request(reg, PINRAIL_KIND_HOST);
  if (has_details(request)) return register_with_details(thread, request, &wanted, reg, room);
  return knows_gpu_ != nullptr ? register_gpu_memory(thread, &wanted, reg, room)
                               : call_registrar(thread, wanted, reg, room);
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
  const bool is_dmabuf = extra != nullptr && extra->fd >= 0;
  if (is_dmabuf) {
    wanted->kind = PINRAIL_KIND_DMABUF;
    wanted->fd = extra->fd;
    wanted->fd_offset = extra->fd_offset;
  }
  const Status status = knows_gpu_ != nullptr && !is_dmabuf ? register_gpu_memory(thread, wanted, reg, room)
                                                            : call_registrar(thread, *wanted, reg, room);
  if (!status.ok()) return status;
  if (details->lkey == 0 && details->rkey == 0) {
    details->lkey = reg->lkey;
    details->rkey = reg->rkey;
  }
  details->iova = wanted->iova != 0 ? wanted->iova : reinterpret_cast<uintptr_t>(reg->base);
  details->user_value = extra != nullptr ? extra->user_value : 0;
  return status;
}

// By dmabuf. If the driver or the device has none, as if it were host memory, which a kernel with peer memory takes.
Status Pool::register_gpu_memory(pinrail_thread_t* thread, pinrail_register_request_t* request,
                                 pinrail_registration_t* reg, Room room) {
  const bool takes_dmabuf = (limits_of_registrar_.kinds & PINRAIL_KIND_DMABUF) != 0;
  Status status = PINRAIL_ERR_NOT_SUPPORTED;
  if (takes_dmabuf && knows_gpu_->export_dmabuf != nullptr) {
    status = knows_gpu_->export_dmabuf(knows_gpu_->context, request->addr, request->length, &request->fd,
                                       &request->fd_offset);
    if (!is_status(status.code())) return PINRAIL_ERR_ERROR;  // C5
    if (status.ok()) {
      request->kind = PINRAIL_KIND_DMABUF;
      status = call_registrar(thread, *request, reg, room);
      close(request->fd);
    }
  }
  if (!status.is(PINRAIL_ERR_NOT_SUPPORTED)) return status;
  request->kind = PINRAIL_KIND_HOST;
  request->fd = -1;
  request->fd_offset = 0;
  const Status as_host = call_registrar(thread, *request, reg, room);
  return as_host.ok() ? as_host : status;
}

// Calls the registrar. If it is out of resources: makes room and calls it again, until it succeeds or nothing is idle
// (R7), and then once more: what another thread was giving back when the device refused may have made room by now.
Status Pool::call_registrar(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                            pinrail_registration_t* reg, Room room) {
  for (bool once_more = true;;) {
    const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
    if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || room == Room::as_it_is) return status;
    if (!make_room(thread) && !std::exchange(once_more, false)) return no_room_status(reg);
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
}

// Gives back dead registrations; if there are none, evicts the next idle one (empty_cache: all of them); if there is
// none, waits a moment for what other threads are giving back. False if none of this can make room.
bool Pool::make_room(pinrail_thread_t* thread) {
  if (drain_all(thread) > 0) return true;
  if (!evict_one(thread)) return wait_for_release(thread);
  if (settings_.empty_cache) evict_all(thread);
  return true;
}

// A thread that is inside a registrar call does not wait: the others may wait for that call.
bool Pool::wait_for_release(const pinrail_thread_t* thread) {
  return thread->in_registrar == 0 && cache_->wait_for_release();
}

// Each limit is named once, whatever the sizes are.
void Pool::report_limit(const pinrail_registration_t* reg) {
  const Limits& limits = cache_->limits();
  const bool by_bytes = reg->length > limits.bytes && !limits.bounds_idle_only;
  if (!by_bytes && limits.count != 0) return;
  if ((by_bytes ? said_bytes_ : said_count_).exchange(true)) return;
  const mpool::WantedLimits& wanted = settings_.limits;
  const mpool::ExceededLimit size_limit = {"mpool_grdma_size_limit", limits.bytes, wanted.explicit_bytes};
  const mpool::ExceededLimit count_limit = {"mpool_grdma_count_limit", limits.count, wanted.explicit_count};
  mpool::report_never_fits(host_, reg->length, by_bytes ? size_limit : count_limit);
}

}  // namespace pinrail::grdma
