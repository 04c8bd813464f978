// SPDX-License-Identifier: BSD-3-Clause
// To the device and back, and how room is made for it. No lock is held here across a call of the registrar.
#include <unistd.h>

#include "base/core/on_unwind.h"
#include "components/mpool/grdma/grdma.h"
#include "framework/mpool/device_request.h"
#include "framework/registrar/request.h"

namespace pinrail::grdma {
// Of GPU memory: which allocation it is. It lies behind the registrar's tail, for of host memory there are too many for
// eight bytes more in each area.
uint64_t& Pool::buffer_id_of(pinrail_registration_t* reg) const {
  return *reinterpret_cast<uint64_t*>(static_cast<char*>(registrar_tail(reg)) + tail_of_registrar());
}

// A registration of the range that the device knows; pending still. R4: if it refuses the wider rights, those asked.
Status Pool::register_on_device(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_counting_t counting, pinrail_registration_t** reg_out) {
  pinrail_registration_t* reg;
  const size_t own_tail = knows_gpu_ != nullptr ? sizeof(request.buffer_id) : 0;
  const Status allocated = host_->registration_alloc(host_, tail_of_registrar() + own_tail, counting, &reg);
  if (!allocated.ok()) return allocated;
  reg->base = reinterpret_cast<void*>(request.span.base);  // NOLINT(performance-no-int-to-ptr): as the caller gave it
  reg->length = request.span.length();
  reg->rights = own->rights;
  reg->traits = request.traits();
  reg->flags = request.flags();
  reg->pool = config_.pool;
  area_of(reg).owner = this;
  if (knows_gpu_ != nullptr) buffer_id_of(reg) = request.buffer_id;
  if (own->is_uncached) link_uncached(reg);

  const auto forget = [&] {
    unlink_uncached(reg);
    host_->registration_free(host_, reg);
  };
  OnUnwind unwound(forget);
  Status status = admit(thread, own, reg);
  if (status.ok()) status = tell_admitted(thread, request, reg);
  unwound.disarm();
  if (!status.ok()) {
    forget();
    return status;
  }
  *reg_out = reg;
  return success();
}

// If the device does not take it, it is dismissed. R4: for wider rights than were asked for, nothing is evicted.
Status Pool::tell_admitted(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  OnUnwind unwound([&] { cache_->dismiss(this, reg); });
  const bool is_wider = reg->rights != request.rights();
  Status status = register_making_room(thread, reg, is_wider ? Room::as_it_is : Room::made);
  if (!status.ok() && is_wider) {
    reg->rights = request.rights();
    status = register_making_room(thread, reg, Room::made);
  }
  unwound.disarm();
  if (!status.ok()) cache_->dismiss(this, reg);
  return status;
}

// Within the limits, if need be at the cost of idle ones (R8).
Status Pool::admit(pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg) {
  Admission admission{reg, own->is_counted};
  own->is_counted = true;  // a call that races is tried again, and is one miss
  Victim victim;
  for (;;) {
    const Victim gone = victim;
    const Status status = cache_->admit(thread, this, &admission, &victim);
    OnUnwind unwound([&] { forget_admission(reg, status, victim); });
    if (gone.reg != nullptr) end(gone.reg, gone.owner);
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) say_limit(reg);
    if (victim.reg != nullptr) {
      leave_device(thread, victim);
      if (status.ok()) end(victim.reg, victim.owner);
      if (status.ok()) victim = {};
      if (settings_.empty_cache) empty(thread);
    }
    if (admission.impossible) {
      unwound.disarm();
      return nothing_idle(reg);
    }
    const bool is_over = !status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    const bool is_hopeless = !is_over && victim.reg == nullptr && !make_room(thread);
    unwound.disarm();
    if (is_over) return status;
    if (is_hopeless) return nothing_idle(reg);
  }
}

// The thread ends inside the registrar, or it threw, after an admission had come to that.
void Pool::forget_admission(pinrail_registration_t* reg, const Status& status, const Victim& victim) {
  if (victim.reg != nullptr && !status.ok()) cache_->dismiss(victim.owner, victim.reg);
  if (victim.reg != nullptr) end(victim.reg, victim.owner);
  if (status.ok()) cache_->dismiss(this, reg);
}

Status Pool::register_making_room(pinrail_thread_t* thread, pinrail_registration_t* reg, Room room) {
  pinrail_register_request_t request = mpool::device_request(reg, PINRAIL_KIND_HOST);
  return knows_gpu_ != nullptr ? tell_gpu_memory(thread, &request, reg, room)
                               : try_register_mem(thread, request, reg, room);
}

// By dmabuf; where driver or device have none, as if it were host memory: a kernel with peer memory takes that.
Status Pool::tell_gpu_memory(pinrail_thread_t* thread, pinrail_register_request_t* request, pinrail_registration_t* reg,
                             Room room) {
  const bool takes_dmabuf = (limits_of_registrar_.kinds & PINRAIL_KIND_DMABUF) != 0;
  Status status = PINRAIL_ERR_NOT_SUPPORTED;
  if (takes_dmabuf && knows_gpu_->export_dmabuf != nullptr) {
    status = knows_gpu_->export_dmabuf(knows_gpu_->context, request->addr, request->length, &request->fd,
                                       &request->fd_offset);
    if (status.ok()) {
      request->kind = PINRAIL_KIND_DMABUF;
      OnUnwind unwound([request] { close(request->fd); });
      status = try_register_mem(thread, *request, reg, room);
      unwound.disarm();
      close(request->fd);
    }
  }
  if (!status.is(PINRAIL_ERR_NOT_SUPPORTED)) return status;
  *request = mpool::device_request(reg, PINRAIL_KIND_HOST);
  const Status as_host = try_register_mem(thread, *request, reg, room);
  return as_host.ok() ? as_host : status;
}

// Asks the device; if room may be made, until it agrees or nothing is left to evict (R7).
Status Pool::try_register_mem(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                              pinrail_registration_t* reg, Room room) {
  for (;;) {
    const Status status = host_->registrar_register(config_.registrar, thread, &request, reg);
    if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || room == Room::as_it_is) return status;
    if (!make_room(thread)) return nothing_idle(reg);
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
}

// Gives back dead ones, else the least recently used idle one (empty_cache: all of them), else waits a moment for
// what other threads are giving back. False if there is nothing of all that.
bool Pool::make_room(pinrail_thread_t* thread) {
  if (drain_all(thread) > 0) return true;
  if (evict_one(thread)) {
    if (settings_.empty_cache) empty(thread);
    return true;
  }
  // A thread inside a registrar call may be what the others wait for.
  return thread->in_registrar == 0 && cache_->wait_for_release(this);
}

Status Pool::nothing_idle(const pinrail_registration_t* own) {
  return cache_->anything_held(own) ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_OUT_OF_RESOURCE;
}

// Each limit is named once, whatever the sizes are.
void Pool::say_limit(const pinrail_registration_t* reg) {
  const Limits& limits = cache_->limits();
  const bool by_bytes = reg->length > limits.bytes;
  if (!by_bytes && limits.count != 0) return;
  if ((by_bytes ? said_bytes_ : said_count_).exchange(true)) return;
  const mpool::WantedLimits& wanted = settings_.limits;
  const mpool::ExceededLimit size_limit = {"mpool_grdma_size_limit", limits.bytes, wanted.explicit_bytes};
  const mpool::ExceededLimit count_limit = {"mpool_grdma_count_limit", limits.count, wanted.explicit_count};
  mpool::say_never_fits(host_, reg->length, by_bytes ? size_limit : count_limit);
}

// The device forgets it, and then we do.
void Pool::give_back(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
  OnUnwind unwound([&] { dismiss_and_end(reg, this); });
  tell_device_off(thread, reg, reason);
  unwound.disarm();
  dismiss_and_end(reg, this);
}

void Pool::dismiss_and_end(pinrail_registration_t* reg, Pool* owner) {
  owner->cache_->dismiss(owner, reg);
  end(reg, owner);
}

// What was dismissed.
void Pool::end(pinrail_registration_t* reg, Pool* owner) {
  owner->host_->registration_free(owner->host_, reg);
  // Last: destroy() waits for it, and then the pool is gone. release: pairs with the acquire load in destroy().
  owner->to_release_.fetch_sub(1, std::memory_order_release);
}

void Pool::tell_device_off(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                           Device device) {
  unlink_uncached(reg);
  // An event that came since overrides: the memory is somebody else's (R12). relaxed: ordered by the state word.
  const auto event = static_cast<pinrail_reason_t>(__atomic_load_n(&area_of(reg).reason, __ATOMIC_RELAXED));
  if (event == PINRAIL_REASON_INVALIDATED) reason = event;
  if (device == Device::forgot) {
    host_->registrar_abandon(config_.registrar, thread, reg, reason);
    return;
  }
  const Status status = host_->registrar_deregister(config_.registrar, thread, reg, reason);
  status.ignore();  // reported by the framework; a registration that the device will not give back is lost either way
}

}  // namespace pinrail::grdma
