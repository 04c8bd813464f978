// SPDX-License-Identifier: BSD-3-Clause
// Requests with options, and the details of a registration. API context; the caller holds no lock and may hold
// references. A successful register call returns one more. pinrail/pinrail.h and registrar.h document the public
// functions.
#include <cstring>

#include "base/core/guarded.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "framework/api/api.h"
#include "framework/api/api_fork.h"
#include "framework/api/record.h"
#include "framework/api/refuse.h"
#include "framework/registrar/request.h"

namespace pinrail::api {
namespace {

// Calls the pool, after all checks of the arguments.
pinrail_status_t register_with(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access, uint32_t flags,
                               const pinrail_register_options_t& options, pinrail_handle_t* handle_out) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  gate::wait_until_released();
  if (is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  if (pool->ops->register_with == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const bool takes_dmabuf = (pool->registrar->table.kinds & PINRAIL_KIND_DMABUF) != 0;
  if (options.dmabuf_fd >= 0 && !takes_dmabuf) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if ((flags & PINRAIL_FLAG_PERSISTENT) == 0) flags |= PINRAIL_FLAG_CACHE_BYPASS;
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const pinrail_status_t status = ask_with_room(pool, thread, [&] {
    return pool->ops->register_with(pool->module, thread, reinterpret_cast<uintptr_t>(addr), length, access_and_flags,
                                    &options, handle_out);
  });
  record::took('R', addr, length, access_and_flags, status == PINRAIL_SUCCESS ? handle_out : nullptr);
  return status;
}

// Where the registration's details are; NULL: it has none. The registration is referenced.
const void* details_of(const pinrail_registration_t* reg) {
  const pinrail_mpool_t* const pool = reg->pool;
  if ((state::load(reg) & state::kOrphan) != 0 || pool == nullptr) return nullptr;
  const pinrail_mpool_ops_t* const ops = pool->former_ops != nullptr ? pool->former_ops : pool->ops;
  const size_t offset = details_offset(pool->registrar->table.tail_size);
  const bool has_room = reg->tail_size >= offset + sizeof(pinrail_registration_details_t);
  return ops->register_with != nullptr && has_room ? static_cast<const char*>(registrar_tail(reg)) + offset : nullptr;
}

}  // namespace

const char* fault_of_options(const pinrail_register_options_t& options) {
  if (options.size != sizeof(options)) return "options->size is not sizeof(pinrail_register_options_t)";
  if (options.reserved != 0) return "options->reserved is not 0";
  if (options.dmabuf_fd < -1) return "options->dmabuf_fd is below -1";
  return options.dmabuf_fd == -1 && options.dmabuf_offset != 0 ? "options has an offset and no dmabuf" : nullptr;
}

}  // namespace pinrail::api

using namespace pinrail;

pinrail_status_t pinrail_mpool_register_with(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                             uint32_t flags, const pinrail_register_options_t* options,
                                             pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_register_with";
  if (options == nullptr) return pinrail_mpool_register(pool, addr, length, access, flags, handle_out);
  const char* fault = pool == nullptr || handle_out == nullptr ? "pool or handle_out is NULL" : nullptr;
  if (fault == nullptr) fault = api::fault_of_range(addr, length);
  if (fault == nullptr) {
    fault = api::fault_of_access(access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT);
  }
  if (fault == nullptr) fault = api::fault_of_options(*options);
  if (fault != nullptr) return api::refuse(kCall, fault);
  return api::report_if_bad(
      api::register_with(pool, addr, length, access, flags, *options, handle_out), kCall,
      "the range, in whole pages, does not lie within the memory or the dmabuf that can be registered");
}

pinrail_status_t pinrail_registration_read_details(const pinrail_registration_t* reg,
                                                   pinrail_registration_details_t* details_out) {
  if (reg == nullptr || details_out == nullptr) {
    return api::refuse("pinrail_registration_read_details", "reg or details_out is NULL");
  }
  const void* const details = api::details_of(reg);
  if (details != nullptr) {
    std::memcpy(details_out, details, sizeof(*details_out));
  } else {
    *details_out = {reg->lkey, reg->rkey, reinterpret_cast<uintptr_t>(reg->base), 0};
  }
  return PINRAIL_SUCCESS;
}
