// SPDX-License-Identifier: BSD-3-Clause
// register, find and deregister: hits are answered here, all else by the pool.
//
// Context  API context.
// Locks    the caller holds no lock, and no function here holds one while it calls the pool (pool->ops), which takes
//          its own locks.
// References  register and find return a reference, deregister drops it. The caller may hold other references.
//
// pinrail/pinrail.h documents the public functions.

#include "base/core/calling_thread.h"
#include "base/hit/recent.h"
#include "base/hit/start_hints.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "framework/api/api.h"
#include "framework/api/pin_job.h"
#include "framework/mpool/allocator.h"

namespace pinrail::api {
namespace {

constexpr const char* kNoWholePages = "the range, in whole pages, does not lie within memory that can be registered";
constexpr const char* kPoolIsCorrupt = "the pool in the registration is overwritten (rule C6)";
constexpr const char* kDeregister = "pinrail_mpool_deregister";

// A range within a chunk that pinrail_mpool_prepin_start() has yet to register is registered now, ahead of all others,
// so that the request hits it. What is cached already, or was asked for inside a registrar, is not delayed.
__attribute__((noinline)) void pin_queued_chunk(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access) {
  const pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr || must_not_wait()) return;
  const NoCancel no_cancel;  // another thread would wait for the chunk for ever
  const Span span = Span::of(addr, length);
  const mpool::PoolWorks::Work work = pool->works.find_queued(span, access);
  if (work != nullptr && !is_registered(pool, span, access)) work->pin_now(span);
}

// The pool has answered a request without flags, by a registration that it had or has made: the next such request finds
// it without the pool, if it may be found so. The thread has a record of its own.
inline void remember(const pinrail_thread_t* thread, const pinrail_mpool_t* pool, uintptr_t addr, uint32_t access,
                     pinrail_handle_t handle) {
  constexpr uint64_t kFound = state::kIndexed | state::kQuick;
  if ((state::load(handle.reg) & kFound) != kFound) return;
  start_hints::remember(handle.reg);
  recent::remember(thread, pool, addr, access, handle);
}

// Registers through the pool, after all checks. Out of line, so that hits need no stack frame for it. It has the
// parameters of pinrail_mpool_register(), which jumps to it without moving them.
__attribute__((noinline)) pinrail_status_t call_pool(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                                     uint32_t flags, pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_register";
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const char* const fault = fault_of_request(pool, addr, length, access_and_flags, handle_out);
  if (fault != nullptr) return refuse(kCall, fault);
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if (is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  gate::wait_until_released();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (unlikely(pool->works.serves_requests()) && flags == 0) pin_queued_chunk(pool, addr, length, access);
  const bool is_watched = mpool::are_hits_watched();
  pinrail_handle_t watched{};  // what is found stale is not the caller's
  pinrail_handle_t* const into = unlikely(is_watched) ? &watched : handle_out;
  pinrail_status_t status;
  do {
    status = ask_with_room(pool, thread, [&] {
      return pool->ops->register_mem(pool->module, thread, reinterpret_cast<uintptr_t>(addr), length, access_and_flags,
                                     into);
    });
  } while (unlikely(is_watched) && status == PINRAIL_SUCCESS && drop_stale(pool, thread, addr, length, *into));
  if (unlikely(is_watched) && status == PINRAIL_SUCCESS) *handle_out = watched;
  if (unlikely(is_watched))
    record::took(pool, 'R', addr, length, access_and_flags, status == PINRAIL_SUCCESS ? handle_out : nullptr);
  else if (status == PINRAIL_SUCCESS && flags == 0)
    remember(thread, pool, reinterpret_cast<uintptr_t>(addr), access, *handle_out);
  if (Status(status).is_lack()) report_no_room(pool, Span::of(reinterpret_cast<uintptr_t>(addr), length), status);
  const std::atomic<int64_t>* const verbosity = pool->verbosity;
  if (unlikely(verbosity != nullptr && verbosity->load(std::memory_order_relaxed) >= PINRAIL_LOG_INFO))
    say_events(pool);
  return report_if_bad(status, kCall, kNoWholePages);
}

// No recent request answers: looks among the starts of all registrations, and else asks the pool. In a forked child the
// pools of the parent are not asked.
__attribute__((noinline)) pinrail_status_t register_by_start(pinrail_mpool_t* pool, void* pointer, size_t length,
                                                             uint32_t access, pinrail_handle_t* handle_out) {
  const pinrail_thread_t* const thread = thread::current_thread;
  const auto addr = reinterpret_cast<uintptr_t>(pointer);
  const bool is_sound = pool != nullptr && length != 0 && fits(addr, length) && (access & ~kAccessMask) == 0;
  if (!is_sound || thread->size == 0 || is_inherited(pool))
    return call_pool(pool, pointer, length, access, 0, handle_out);
  const Span span = {addr, addr + length};
  const auto drop_other = [](pinrail_handle_t other) { Status(pinrail_mpool_deregister(other)).ignore(); };
  pinrail_handle_t handle;
  if (!start_hints::find(pool, addr & ~pool->page_mask, span, access, &handle, drop_other))
    return call_pool(pool, pointer, length, access, 0, handle_out);
  pool->counts.add_hit(thread);
  recent::remember(thread, pool, addr, access, handle);
  *handle_out = handle;
  return PINRAIL_SUCCESS;
}

// Drops a reference where a decrement is not all: an empty or stale handle, an orphan, or what its pool must see.
// BAD_PARAM: the handle is empty or stale.
__attribute__((noinline)) pinrail_status_t deregister_by_pool(pinrail_handle_t handle) {
  if (handle.reg == nullptr) return refuse(kDeregister, "the handle is empty: its reg is NULL");
  const uint64_t word = state::load(handle.reg);
  if (state::generation(word) != handle.generation) return refuse(kDeregister, kHandleIsGone);
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if (unlikely(record::is_on())) record::dropping(handle);
  if ((word & state::kOrphan) != 0) {
    // Its pool was destroyed by force (R10): the last drop frees its memory and does nothing else.
    const Drop dropped = drop(handle);
    if (dropped == Drop::stale) return refuse(kDeregister, kHandleIsGone);
    if (dropped == Drop::last) arena::free(handle.reg);
    return PINRAIL_SUCCESS;
  }
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_mpool_t* pool = handle.reg->pool;
  check_known(pool);
  if (pool == nullptr) return refuse(kDeregister, kPoolIsCorrupt);
  return report_if_bad(pool->ops->deregister(pool->module, thread, handle), kDeregister, kHandleIsGone);
}

}  // namespace

bool give_back_unused(const pinrail_mpool_t* pool, const pinrail_thread_t* thread, Status status) {
  mpool::Allocator* const allocator = status.is_lack() && thread->in_registrar == 0 ? pool->allocator.load() : nullptr;
  return allocator != nullptr && allocator->give_back_idle();
}

}  // namespace pinrail::api

using namespace pinrail;

// Three ways, the shortest first: the thread's recent requests, the starts of all registrations, the pool. The first
// way checks few arguments: a remembered request was checked when it was first made.
pinrail_status_t pinrail_mpool_register(pinrail_mpool_t* pool, void* pointer, size_t length, uint32_t access,
                                        uint32_t flags, pinrail_handle_t* handle_out) {
  const auto addr = reinterpret_cast<uintptr_t>(pointer);
  const pinrail_thread_t* const thread = thread::current_thread;
  if (unlikely(flags != 0) || unlikely(!gate::is_open()) || unlikely(handle_out == nullptr))
    return api::call_pool(pool, pointer, length, access, flags, handle_out);
  const RecentRequest& recent = *recent::entry_for(thread, pool, addr);
  if (!recent::matches(recent, pool, addr, length, access) || !recent::take(recent, handle_out))
    return api::register_by_start(pool, pointer, length, access, handle_out);
  pool->counts.add_hit(thread);
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_mpool_find(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                    pinrail_handle_t* handle_out) {
  const char* const fault = api::fault_of_request(pool, addr, length, access, handle_out);
  if (fault != nullptr) return api::refuse(__func__, fault);
  const pinrail_status_t status = api::in_call(pool, [=](pinrail_thread_t* thread) {
    gate::wait_until_released();
    const bool is_watched = mpool::are_hits_watched();
    pinrail_handle_t watched{};
    pinrail_status_t found = pool->ops->find(pool->module, thread, reinterpret_cast<uintptr_t>(addr), length, access,
                                             unlikely(is_watched) ? &watched : handle_out);
    if (likely(!is_watched)) return found;
    if (found == PINRAIL_SUCCESS && api::drop_stale(pool, thread, addr, length, watched)) found = PINRAIL_ERR_NOT_FOUND;
    if (found == PINRAIL_SUCCESS) *handle_out = watched;
    record::took(pool, 'F', addr, length, access, found == PINRAIL_SUCCESS ? &watched : nullptr);
    return found;
  });
  return api::report_if_bad(status, __func__, api::kNoWholePages);
}

// Usually a decrement of the registration's word.
pinrail_status_t pinrail_mpool_deregister(pinrail_handle_t handle) {
  if (likely(handle.reg != nullptr) && likely(drop_quick(handle))) return PINRAIL_SUCCESS;
  return api::deregister_by_pool(handle);
}

void* pinrail_registration_tail(const pinrail_registration_t* reg) {
  return reg == nullptr ? nullptr : arena::tail_of(reg);
}

pinrail_registration_t* pinrail_registration_of_tail(const void* tail) {
  return tail == nullptr ? nullptr : arena::of_tail(tail);
}

pinrail_handle_t pinrail_registration_handle(pinrail_registration_t* reg) {
  if (reg == nullptr) return {nullptr, 0};
  return {reg, generation_of(reg)};
}

// Calls that pass a registration's data, streams or advice on to its registrar, and those about GPU memory of other
// processes. pinrail/pinrail.h and pin.h document them.
//
// Context  API context. The caller holds no lock, and a reference of the registration that it passes. A registration is
//          returned with a reference.

namespace pinrail::api {
namespace {

// Whether the handle's registration still belongs to its pool. API context.
bool is_current(pinrail_handle_t handle) {
  if (handle.reg == nullptr) return false;
  handle_fork();
  const uint64_t word = state::load(handle.reg);
  return state::generation(word) == handle.generation && (word & state::kOrphan) == 0;
}

// Returns a clause that names the fault in the arguments of a device read or write; NULL: no fault.
const char* fault_of_transfer(pinrail_handle_t handle, size_t offset, const void* bytes, size_t length) {
  if (!is_current(handle)) return kHandleIsGone;
  if (bytes == nullptr) return "the address of the bytes is NULL";
  return within(*handle.reg, offset, length) ? nullptr : "the bytes do not lie within the registration";
}

// Calls a function of framework/registrar for a registration of which the caller holds a reference. The arguments are
// passed by value: a pinrail_advice_t may be no enumerator, and to load such a value from memory is undefined.
// NOT_AVAILABLE: in a forked child.
template <typename Function, typename... Arguments>
pinrail_status_t call_registrar(Function function, pinrail_handle_t handle, Arguments... arguments) {
  const NoCancel no_cancel;
  const pinrail_mpool_t* const pool = handle.reg->pool;
  if (is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return function(pool->registrar.get(), thread, handle.reg, arguments...);
}

// A device read or write.
template <typename Function, typename Bytes>
pinrail_status_t transfer(const char* call, Function function, pinrail_handle_t handle, size_t offset, Bytes* bytes,
                          size_t length) {
  if (const char* const fault = fault_of_transfer(handle, offset, bytes, length)) return refuse(call, fault);
  return report_if_bad(call_registrar(function, handle, offset, bytes, length), call,
                       "the bytes at the address that it passed cannot be accessed");
}

pinrail_status_t order(const char* call, registrar::Order function, pinrail_handle_t handle, void* stream) {
  if (!is_current(handle)) return refuse(call, kHandleIsGone);
  return report_if_bad(call_registrar(registrar::order, handle, function, stream), call,
                       "the stream is not valid, or is not of the GPU's primary context");
}

}  // namespace
}  // namespace pinrail::api

pinrail_status_t pinrail_mpool_device_read(pinrail_handle_t handle, size_t offset, void* into, size_t length) {
  return api::transfer("pinrail_mpool_device_read", registrar::device_read, handle, offset, into, length);
}

pinrail_status_t pinrail_mpool_device_write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) {
  return api::transfer("pinrail_mpool_device_write", registrar::device_write, handle, offset, from, length);
}

pinrail_status_t pinrail_mpool_record(pinrail_handle_t handle, void* stream) {
  return api::order("pinrail_mpool_record", &pinrail_registrar_t::record, handle, stream);
}

pinrail_status_t pinrail_mpool_wait(pinrail_handle_t handle, void* stream) {
  return api::order("pinrail_mpool_wait", &pinrail_registrar_t::wait, handle, stream);
}

pinrail_status_t pinrail_mpool_advise(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                      pinrail_advice_t advice) {
  constexpr const char* kCall = "pinrail_mpool_advise";
  const pinrail_handle_t unused{};
  const char* const fault = api::fault_of_request(pool, addr, length, access | PINRAIL_TRAIT_ON_DEMAND, &unused);
  if (fault != nullptr) return api::refuse(kCall, fault);
  if (advice < PINRAIL_ADVICE_PREFETCH || advice > PINRAIL_ADVICE_PREFETCH_PRESENT) {
    return api::refuse(kCall, "there is no such advice");
  }
  return api::on_pool(pool, [=]() -> pinrail_status_t {
    const pinrail_registrar_t& table = pool->registrar->table;
    if (table.on_demand == PINRAIL_ON_DEMAND_NONE || table.advise == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    const deferred::CallerScope inside;  // for the two calls below
    pinrail_handle_t handle;
    const pinrail_status_t status =
        pinrail_mpool_register(pool, addr, length, access | PINRAIL_TRAIT_ON_DEMAND, 0, &handle);
    if (status != PINRAIL_SUCCESS) return status;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the call above has set the handle
    const size_t offset = reinterpret_cast<uintptr_t>(addr) - reinterpret_cast<uintptr_t>(handle.reg->base);
    const pinrail_status_t advised = api::call_registrar(registrar::advise, handle, offset, length, advice);
    Status(pinrail_mpool_deregister(handle)).ignore();
    return api::report_if_bad(advised, kCall, "the device refuses advice on this range");
  });
}

pinrail_status_t pinrail_mpool_export(pinrail_mpool_t* pool, void* addr, size_t length, pinrail_gpu_block_t* block_out,
                                      size_t* offset_out) {
  const auto base = reinterpret_cast<uintptr_t>(addr);
  if (pool == nullptr || block_out == nullptr || offset_out == nullptr) {
    return api::refuse(__func__, "pool, block_out or offset_out is NULL");
  }
  if (const char* const fault = api::fault_of_range(addr, length)) return api::refuse(__func__, fault);
  const pinrail_status_t status = api::in_call(pool, [=](pinrail_thread_t* thread) -> pinrail_status_t {
    if (pool->ops->export_range == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    gate::wait_until_released();
    return pool->ops->export_range(pool->module, thread, base, length, block_out, offset_out);
  });
  return api::report_if_bad(status, __func__, "the range does not lie within one allocation");
}

// The gate is held for events of any memory that wait to be delivered (deferred_hook/H2).
pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t* pool, const pinrail_gpu_block_t* block, size_t offset,
                                               size_t length, uint32_t access, uint32_t flags,
                                               pinrail_handle_t* handle_out) {
  if (pool == nullptr || block == nullptr || handle_out == nullptr) {
    return api::refuse(__func__, "pool, block or handle_out is NULL");
  }
  if (length == 0) return api::refuse(__func__, "length is 0");
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  if (const char* const fault = api::fault_of_access(access_and_flags)) return api::refuse(__func__, fault);
  const pinrail_status_t status = api::in_call(pool, [=](pinrail_thread_t* thread) -> pinrail_status_t {
    if (pool->ops->register_remote == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    gate::wait_until_released();
    return pool->ops->register_remote(pool->module, thread, block, offset, length, access_and_flags, handle_out);
  });
  return api::report_if_bad(status, __func__, "the block is damaged, or the range does not lie within its allocation");
}
