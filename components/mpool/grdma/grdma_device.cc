// SPDX-License-Identifier: BSD-3-Clause
// Registers ranges on the device, and makes room for them. API context. The caller holds no lock,
// because the registrar is called (R6). The calling thread may hold references of other registrations.
#include <unistd.h>

#include <utility>

#include "base/core/no_cancel.h"
#include "base/core/on_unwind.h"
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

// A registration of the range that the device knows, still pending: own->admission.reg. R4: with the wider rights of
// `own`, for which nothing is evicted, or, if the device refuses those, with the rights that were asked for.
Status Pool::register_on_device(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_counting_t counting) {
  pinrail_registration_t* reg;
  const size_t own_tail = knows_gpu_ != nullptr ? sizeof(request.buffer_id) : 0;
  const size_t tail = has_details(request)
                          ? details_offset(limits_of_registrar_.tail_size) + sizeof(pinrail_registration_details_t)
                          : tail_of_registrar() + own_tail;
  const Status allocated = host_->registrations->alloc(host_, tail, counting, &reg);
  if (!allocated.ok()) return allocated;
  reg->base = reinterpret_cast<void*>(request.span.base);  // NOLINT(performance-no-int-to-ptr): as the caller gave it
  reg->length = request.span.length();
  reg->rights = own->rights;
  reg->traits = request.traits();
  reg->flags = request.flags();
  reg->pool = config_.pool;
  if (knows_gpu_ != nullptr) {
    area_of(reg).memory = Memory::gpu;
    buffer_id_of(reg) = request.buffer_id;
  }
  if (own->is_uncached) unindexed_.link_uncached(reg);
  // A call that races is tried again, and is one miss.
  own->admission = {reg, own->admission.is_counted};
  OnUnwind unless_registered([&] { give_up(thread, own); });
  Status status = admit(thread, own);
  if (!status.ok()) return status;
  const bool is_wider = reg->rights != request.rights();
  status = register_range(thread, request, reg, is_wider ? Room::as_it_is : Room::made);
  if (!status.ok() && is_wider) {
    reg->rights = request.rights();
    status = register_range(thread, request, reg, Room::made);
  }
  if (status.ok()) unless_registered.disarm();
  return status;
}

// The registration is not made, or the thread ends inside a registrar: takes back all that was done for it.
void Pool::give_up(pinrail_thread_t* thread, Pending* own) {
  const Admission& admission = own->admission;
  const Victim& victim = admission.victim;
  if (victim.reg != nullptr) {
    if (!admission.is_admitted) cache_->dismiss(victim.owner, victim.reg);
    victim.owner->remove_from_index(victim.reg);
    victim.owner->deregistrar_.free_dismissed(thread, victim.reg);
  }
  if (admission.is_admitted) cache_->dismiss(this, admission.reg);
  unindexed_.unlink_uncached(admission.reg);
  host_->registrations->free(host_, admission.reg);
  if (own->leaving == nullptr) return;
  remove_from_index(own->leaving);
  free_leaving(own);
}

// Gets the registration its place in the budget, if need be at the cost of idle ones (R8).
Status Pool::admit(pinrail_thread_t* thread, Pending* own) {
  Admission& admission = own->admission;
  for (;;) {
    const Victim gone = admission.victim;
    const Status status = cache_->admit(thread, this, &admission);
    if (gone.reg != nullptr) gone.owner->deregistrar_.free_dismissed(thread, gone.reg);
    const bool has_victim = admission.victim.reg != nullptr;
    if (has_victim) {
      evict_for(thread, own);
      if (settings_.empty_cache) evict_all(thread);
    }
    if (admission.is_admitted) return success();
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) report_limit(admission.reg);
    if (!status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) return status;
    if (admission.is_impossible) return no_victim_status(admission.reg);
    if (has_victim || make_room(thread)) continue;
    admission.is_admitted = cache_->admit_after_all(this, admission.reg);
    return admission.is_admitted ? success() : no_victim_status(admission.reg);
  }
}

// Deregisters the victim. If its place in the budget was taken it is freed as well, at once or when the caller
// publishes its own registration: then it leaves the index in the same step (grdma/G7).
void Pool::evict_for(pinrail_thread_t* thread, Pending* own) {
  Victim& victim = own->admission.victim;
  const bool has_left = own->admission.is_admitted;
  const bool leaves_later = has_left && victim.owner == this && own->is_announced && rcache_shortcut_ != nullptr;
  if (!leaves_later) victim.owner->remove_from_index(victim.reg);
  victim.owner->deregistrar_.deregister(thread, victim.reg, PINRAIL_REASON_EVICTED);
  if (!has_left) return;
  if (leaves_later) {
    // The release ends here and not with the call: a request that waits for releases does not wait for the registrar.
    in_flight_.end_releases(thread, 1);
    own->leaving = victim.reg;
  } else {
    victim.owner->deregistrar_.free_dismissed(thread, victim.reg);
  }
  victim = {};
}

// Calls the registrar for the registration's range and rights, as the kind of memory that this pool is of, or as the
// options of the request say.
inline Status Pool::register_range(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg,
                                   Room room) {
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
      const auto done = [request] {
        const NoCancel no_cancel;  // close() is a cancellation point, and the device may know the registration
        close(request->fd);
      };
      OnUnwind unwound(done);
      status = call_registrar(thread, *request, reg, room);
      unwound.disarm();
      done();
    }
  }
  if (!status.is(PINRAIL_ERR_NOT_SUPPORTED)) return status;
  request->kind = PINRAIL_KIND_HOST;
  request->fd = -1;
  request->fd_offset = 0;
  const Status as_host = call_registrar(thread, *request, reg, room);
  return as_host.ok() ? as_host : status;
}

// Calls the registrar.
inline Status Pool::call_registrar(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                                   pinrail_registration_t* reg, Room room) {
  const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
  if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || room == Room::as_it_is) return status;
  return call_again(thread, request, reg);
}

// The registrar is out of resources: makes room and calls it again, until it succeeds or nothing is idle (R7), and then
// once more: what another thread was giving back when the device refused may have made room by now.
Status Pool::call_again(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                        pinrail_registration_t* reg) {
  for (bool once_more = true;;) {
    if (!make_room(thread) && !std::exchange(once_more, false)) return no_victim_status(reg);
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
    const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
    if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) return status;
  }
}

// Gives back dead registrations; if there are none, evicts the next idle one (empty_cache: all of them);
// if there is none, waits a moment for what other threads are giving back. False if none of this can make room.
bool Pool::make_room(pinrail_thread_t* thread) {
  if (drain_all(thread) > 0) return true;
  if (evict_one(thread)) {
    if (settings_.empty_cache) evict_all(thread);
    return true;
  }
  // A thread that is inside a registrar call does not wait: the others may wait for that call.
  return thread->in_registrar == 0 && cache_->wait_for_release(this);
}

// The status of a request that found no room: TEMP_OUT_OF_RESOURCE if anything else is held or pending.
Status Pool::no_victim_status(const pinrail_registration_t* own) {
  return cache_->anything_held(own) ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_OUT_OF_RESOURCE;
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
