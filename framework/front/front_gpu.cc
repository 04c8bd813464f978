// SPDX-License-Identifier: BSD-3-Clause
// Calls about GPU memory of other processes: check the arguments, forward to the pool. API context. The caller holds no
// lock and may hold references; a registration is returned with a reference. pinrail/pinrail.h documents the public
// functions.
#include "base/sync/gate.h"
#include "framework/front/front.h"
#include "framework/front/on_work.h"
#include "framework/front/refuse.h"

using namespace pinrail;

pinrail_status_t pinrail_mpool_export(pinrail_mpool_t* pool, void* addr, size_t length, pinrail_gpu_block_t* block_out,
                                      size_t* offset_out) {
  const auto base = reinterpret_cast<uintptr_t>(addr);
  constexpr const char* kCall = "pinrail_mpool_export";
  if (pool == nullptr || block_out == nullptr || offset_out == nullptr) {
    return front::refuse(kCall, "pool, block_out or offset_out is NULL");
  }
  const char* const fault = front::fault_of_range(addr, length);
  if (fault != nullptr) return front::refuse(kCall, fault);
  const pinrail_status_t status = front::in_call([=](pinrail_thread_t* thread) -> pinrail_status_t {
    if (pool->ops->export_range == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    gate::wait_until_released();
    return pool->ops->export_range(pool->module, thread, base, length, block_out, offset_out);
  });
  return front::report_if_bad(status, kCall, "the range does not lie within one allocation");
}

// Does not wait for the gate: it concerns host memory only.
pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t* pool, const pinrail_gpu_block_t* block, size_t offset,
                                               size_t length, uint32_t access, uint32_t flags,
                                               pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_register_remote";
  if (pool == nullptr || block == nullptr || handle_out == nullptr) {
    return front::refuse(kCall, "pool, block or handle_out is NULL");
  }
  if (length == 0) return front::refuse(kCall, "length is 0");
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const char* const fault = front::fault_of_access(access_and_flags);
  if (fault != nullptr) return front::refuse(kCall, fault);
  const pinrail_status_t status = front::in_call([=](pinrail_thread_t* thread) -> pinrail_status_t {
    if (pool->ops->register_remote == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    return pool->ops->register_remote(pool->module, thread, block, offset, length, access_and_flags, handle_out);
  });
  return front::report_if_bad(status, kCall, "the block is damaged, or the range does not lie within its allocation");
}
