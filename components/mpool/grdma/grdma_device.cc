// SPDX-License-Identifier: BSD-3-Clause
// Registers ranges on the device and gives them back, and makes room for them. API context. The caller holds no lock,
// because the registrar is called (R6). The calling thread may hold references of other registrations.
#include <unistd.h>

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

// A registration of the range that the device knows, still pending. R4: with the wider rights of `own`, or, if the
// device refuses those, with the rights that were asked for.
Status Pool::register_on_device(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_counting_t counting, pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg;
  const size_t own_tail = knows_gpu_ != nullptr ? sizeof(request.buffer_id) : 0;
  const Status allocated = host_->registrations->alloc(host_, tail_of_registrar() + own_tail, counting, &reg);
  if (!allocated.ok()) return allocated;
  reg->base = reinterpret_cast<void*>(request.span.base);  // NOLINT(performance-no-int-to-ptr): as the caller gave it
  reg->length = request.span.length();
  reg->rights = own->rights;
  reg->traits = request.traits();
  reg->flags = request.flags();
  reg->pool = config_.pool;
  area_of(reg).owner = this;
  if (knows_gpu_ != nullptr) buffer_id_of(reg) = request.buffer_id;
  if (own->is_uncached) unindexed_.link_uncached(reg);

  const auto forget = [&] {
    unindexed_.unlink_uncached(reg);
    host_->registrations->free(host_, reg);
  };
  OnUnwind unwound(forget);
  Status status = admit(thread, own, reg);
  if (status.ok()) status = register_admitted(thread, request, reg);
  unwound.disarm();
  if (!status.ok()) {
    forget();
    return status;
  }
  *reg_out = reg;
  return success();
}

// Dismisses the registration if the device refuses it. R4: for wider rights than were asked for, nothing is evicted.
Status Pool::register_admitted(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  OnUnwind unwound([&] { cache_->dismiss(this, reg); });
  const bool is_wider = reg->rights != request.rights();
  Status status = register_range(thread, reg, is_wider ? Room::as_it_is : Room::made);
  if (!status.ok() && is_wider) {
    reg->rights = request.rights();
    status = register_range(thread, reg, Room::made);
  }
  unwound.disarm();
  if (!status.ok()) cache_->dismiss(this, reg);
  return status;
}

// Gets the registration its place in the budget, if need be at the cost of idle ones (R8).
Status Pool::admit(pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg) {
  Admission admission{reg, own->is_counted};
  own->is_counted = true;  // a call that races is tried again, and is one miss
  Victim victim;
  for (;;) {
    const Victim gone = victim;
    const Status status = cache_->admit(thread, this, &admission, &victim);
    OnUnwind unwound([&] { forget_admission(reg, status, victim); });
    if (gone.reg != nullptr) free_dismissed(gone.reg, gone.owner);
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) report_limit(reg);
    if (victim.reg != nullptr) {
      evict_from_device(thread, victim);
      if (status.ok()) free_dismissed(victim.reg, victim.owner);
      if (status.ok()) victim = {};
      if (settings_.empty_cache) evict_all(thread);
    }
    if (admission.impossible) {
      unwound.disarm();
      return no_victim_status(reg);
    }
    const bool is_over = !status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    const bool is_hopeless = !is_over && victim.reg == nullptr && !make_room(thread);
    unwound.disarm();
    if (is_over) return status;
    if (is_hopeless) return no_victim_status(reg);
  }
}

// admit() was unwound out of a registrar call: takes back what the cache answered last.
void Pool::forget_admission(pinrail_registration_t* reg, const Status& status, const Victim& victim) {
  if (victim.reg != nullptr && !status.ok()) cache_->dismiss(victim.owner, victim.reg);
  if (victim.reg != nullptr) free_dismissed(victim.reg, victim.owner);
  if (status.ok()) cache_->dismiss(this, reg);
}

// Calls the registrar for the registration's range and rights, as the kind of memory that this pool is of.
Status Pool::register_range(pinrail_thread_t* thread, pinrail_registration_t* reg, Room room) {
  pinrail_register_request_t request = mpool::device_request(reg, PINRAIL_KIND_HOST);
  return knows_gpu_ != nullptr ? register_gpu_memory(thread, &request, reg, room)
                               : call_registrar(thread, request, reg, room);
}

// By dmabuf. If the driver or the device has none, as if it were host memory, which a kernel with peer memory takes.
Status Pool::register_gpu_memory(pinrail_thread_t* thread, pinrail_register_request_t* request,
                                 pinrail_registration_t* reg, Room room) {
  const bool takes_dmabuf = (limits_of_registrar_.kinds & PINRAIL_KIND_DMABUF) != 0;
  Status status = PINRAIL_ERR_NOT_SUPPORTED;
  if (takes_dmabuf && knows_gpu_->export_dmabuf != nullptr) {
    status = knows_gpu_->export_dmabuf(knows_gpu_->context, request->addr, request->length, &request->fd,
                                       &request->fd_offset);
    if (status.ok()) {
      request->kind = PINRAIL_KIND_DMABUF;
      OnUnwind unwound([request] { close(request->fd); });
      status = call_registrar(thread, *request, reg, room);
      unwound.disarm();
      close(request->fd);
    }
  }
  if (!status.is(PINRAIL_ERR_NOT_SUPPORTED)) return status;
  *request = mpool::device_request(reg, PINRAIL_KIND_HOST);
  const Status as_host = call_registrar(thread, *request, reg, room);
  return as_host.ok() ? as_host : status;
}

// Calls the registrar; if room may be made, again until it succeeds or nothing is idle (R7).
Status Pool::call_registrar(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                            pinrail_registration_t* reg, Room room) {
  for (;;) {
    const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
    if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || room == Room::as_it_is) return status;
    if (!make_room(thread)) return no_victim_status(reg);
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
}

// Gives back dead registrations; if there are none, evicts the least recently used idle one (empty_cache: all of them);
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
  const bool by_bytes = reg->length > limits.bytes;
  if (!by_bytes && limits.count != 0) return;
  if ((by_bytes ? said_bytes_ : said_count_).exchange(true)) return;
  const mpool::WantedLimits& wanted = settings_.limits;
  const mpool::ExceededLimit size_limit = {"mpool_grdma_size_limit", limits.bytes, wanted.explicit_bytes};
  const mpool::ExceededLimit count_limit = {"mpool_grdma_count_limit", limits.count, wanted.explicit_count};
  mpool::report_never_fits(host_, reg->length, by_bytes ? size_limit : count_limit);
}

// Deregisters it on the device and then frees it. in_flight_ counts it already.
void Pool::give_back(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
  OnUnwind unwound([&] { dismiss_and_free(reg, this); });
  deregister_from_device(thread, reg, reason);
  unwound.disarm();
  dismiss_and_free(reg, this);
}

// The device has deregistered it. The pool may be destroyed afterwards.
void Pool::dismiss_and_free(pinrail_registration_t* reg, Pool* owner) {
  owner->cache_->dismiss(owner, reg);
  free_dismissed(reg, owner);
}

// Its place in the budget is given back already. The pool may be destroyed afterwards.
void Pool::free_dismissed(pinrail_registration_t* reg, Pool* owner) {
  owner->host_->registrations->free(owner->host_, reg);
  owner->in_flight_.end_release();  // last: after it the pool may be destroyed
}

// It is dead and unreferenced.
void Pool::give_back_dropped(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  in_flight_.begin_release();
  give_back(thread, reg, PINRAIL_REASON_RELEASED);
}

// Calls the registrar, or tells it only to forget the registration. It is dead, unreferenced or forced, and out of the
// index.
void Pool::deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                                  Device device) {
  unindexed_.unlink_uncached(reg);
  // An event that has come since overrides: the memory may be another's by now (R12). relaxed: ordered by the state
  // word.
  const auto event = static_cast<pinrail_reason_t>(__atomic_load_n(&area_of(reg).reason, __ATOMIC_RELAXED));
  if (event == PINRAIL_REASON_INVALIDATED) reason = event;
  if (device == Device::restarted) {
    host_->pools->registrar_abandon(config_.registrar, thread, reg, reason);
    return;
  }
  const Status status = host_->pools->registrar_deregister(config_.registrar, thread, reg, reason);
  status.ignore();  // the framework has reported it; the registration is lost to us either way
}

}  // namespace pinrail::grdma
