// SPDX-License-Identifier: BSD-3-Clause
// Calls that pass a registration's data, streams or advice on to its registrar, and those about GPU memory of other
// processes. pinrail/pinrail.h and pin.h document them.
//
// Context  API context. The caller holds no lock, and a reference of the registration that it passes. A registration is
//          returned with a reference.
#include <pinrail/pin.h>

#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "framework/api/api.h"
#include "framework/api/api_fork.h"

namespace pinrail::api {
namespace {

constexpr const char* kBytesOutOfReach = "the bytes at the address that it passed cannot be accessed";
constexpr const char* kWrongStream = "the stream is not valid, or is not of the GPU's primary context";

// Whether the handle's registration still belongs to its pool. API context.
bool is_current(pinrail_handle_t handle) {
  if (handle.reg == nullptr) return false;
  handle_fork();
  const uint64_t word = state::load(handle.reg);
  return state::generation(word) == handle.generation && (word & state::kOrphan) == 0;
}

// Whether the range lies within the handle's registration, of which the caller holds a reference.
bool is_inside(pinrail_handle_t handle, size_t offset, size_t length) {
  return offset <= handle.reg->length && length <= handle.reg->length - offset;
}

// Returns a clause that names the fault in the arguments of a device read or write; NULL: no fault.
const char* fault_of_transfer(pinrail_handle_t handle, size_t offset, const void* bytes, size_t length) {
  if (!is_current(handle)) return kHandleIsGone;
  if (bytes == nullptr) return "the address of the bytes is NULL";
  return is_inside(handle, offset, length) ? nullptr : "the bytes do not lie within the registration";
}

// Calls a function of framework/registrar for a registration of which the caller holds a reference. The arguments are
// passed by value: a pinrail_advice_t may be no enumerator, and to load such a value from memory is undefined.
// NOT_AVAILABLE: in a forked child.
template <typename Function, typename... Arguments>
pinrail_status_t call_registrar(Function function, pinrail_handle_t handle, Arguments... arguments) {
  const pinrail_mpool_t* const pool = handle.reg->pool;
  if (is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return function(pool->registrar.get(), thread, handle.reg, arguments...);
}

}  // namespace
}  // namespace pinrail::api

using namespace pinrail;

pinrail_status_t pinrail_mpool_device_read(pinrail_handle_t handle, size_t offset, void* into, size_t length) {
  constexpr const char* kCall = "pinrail_mpool_device_read";
  const char* const fault = api::fault_of_transfer(handle, offset, into, length);
  if (fault != nullptr) return api::refuse(kCall, fault);
  return api::report_if_bad(api::call_registrar(registrar::device_read, handle, offset, into, length), kCall,
                            api::kBytesOutOfReach);
}

pinrail_status_t pinrail_mpool_device_write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) {
  constexpr const char* kCall = "pinrail_mpool_device_write";
  const char* const fault = api::fault_of_transfer(handle, offset, from, length);
  if (fault != nullptr) return api::refuse(kCall, fault);
  return api::report_if_bad(api::call_registrar(registrar::device_write, handle, offset, from, length), kCall,
                            api::kBytesOutOfReach);
}

pinrail_status_t pinrail_mpool_record(pinrail_handle_t handle, void* stream) {
  constexpr const char* kCall = "pinrail_mpool_record";
  if (!api::is_current(handle)) return api::refuse(kCall, api::kHandleIsGone);
  return api::report_if_bad(api::call_registrar(registrar::order, handle, &pinrail_registrar_t::record, stream), kCall,
                            api::kWrongStream);
}

pinrail_status_t pinrail_mpool_wait(pinrail_handle_t handle, void* stream) {
  constexpr const char* kCall = "pinrail_mpool_wait";
  if (!api::is_current(handle)) return api::refuse(kCall, api::kHandleIsGone);
  return api::report_if_bad(api::call_registrar(registrar::order, handle, &pinrail_registrar_t::wait, stream), kCall,
                            api::kWrongStream);
}

pinrail_status_t pinrail_mpool_advise(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                      pinrail_advice_t advice) {
  constexpr const char* kCall = "pinrail_mpool_advise";
  pinrail_handle_t handle{};
  const char* const fault = api::fault_of_request(pool, addr, length, access, &handle);
  if (fault != nullptr) return api::refuse(kCall, fault);
  if (advice < PINRAIL_ADVICE_PREFETCH || advice > PINRAIL_ADVICE_PREFETCH_PRESENT) {
    return api::refuse(kCall, "there is no such advice");
  }
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  api::handle_fork();
  if (api::is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  const pinrail_registrar_t& table = pool->registrar->table;
  if (table.on_demand == PINRAIL_ON_DEMAND_NONE || table.advise == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const deferred::CallerScope inside;  // for the two calls below
  const pinrail_status_t status =
      pinrail_mpool_register(pool, addr, length, access | PINRAIL_TRAIT_ON_DEMAND, 0, &handle);
  if (status != PINRAIL_SUCCESS) return status;
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the call above has set the handle
  const size_t offset = reinterpret_cast<uintptr_t>(addr) - reinterpret_cast<uintptr_t>(handle.reg->base);
  const pinrail_status_t advised = api::call_registrar(registrar::advise, handle, offset, length, advice);
  Status(pinrail_mpool_deregister(handle)).ignore();
  return api::report_if_bad(advised, kCall, "the device refuses advice on this range");
}

pinrail_status_t pinrail_mpool_export(pinrail_mpool_t* pool, void* addr, size_t length, pinrail_gpu_block_t* block_out,
                                      size_t* offset_out) {
  const auto base = reinterpret_cast<uintptr_t>(addr);
  constexpr const char* kCall = "pinrail_mpool_export";
  if (pool == nullptr || block_out == nullptr || offset_out == nullptr) {
    return api::refuse(kCall, "pool, block_out or offset_out is NULL");
  }
  const char* const fault = api::fault_of_range(addr, length);
  if (fault != nullptr) return api::refuse(kCall, fault);
  const pinrail_status_t status = api::in_call([=](pinrail_thread_t* thread) -> pinrail_status_t {
    if (pool->ops->export_range == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    gate::wait_until_released();
    return pool->ops->export_range(pool->module, thread, base, length, block_out, offset_out);
  });
  return api::report_if_bad(status, kCall, "the range does not lie within one allocation");
}

// Does not wait for the gate: it concerns host memory only.
pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t* pool, const pinrail_gpu_block_t* block, size_t offset,
                                               size_t length, uint32_t access, uint32_t flags,
                                               pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_register_remote";
  if (pool == nullptr || block == nullptr || handle_out == nullptr) {
    return api::refuse(kCall, "pool, block or handle_out is NULL");
  }
  if (length == 0) return api::refuse(kCall, "length is 0");
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const char* const fault = api::fault_of_access(access_and_flags);
  if (fault != nullptr) return api::refuse(kCall, fault);
  const pinrail_status_t status = api::in_call([=](pinrail_thread_t* thread) -> pinrail_status_t {
    if (pool->ops->register_remote == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    return pool->ops->register_remote(pool->module, thread, block, offset, length, access_and_flags, handle_out);
  });
  return api::report_if_bad(status, kCall, "the block is damaged, or the range does not lie within its allocation");
}
