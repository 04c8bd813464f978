// SPDX-License-Identifier: BSD-3-Clause
// Calls about GPU memory of other processes: check the arguments, forward to the pool. API context. The caller holds no
// lock and may hold references; a registration is returned with a reference. pinrail/pinrail.h documents the public
// functions.
#include "base/core/span.h"
#include "base/hit/allocation_table.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/refuse.h"
#include "framework/mpool/gpu_block.h"

namespace pinrail::front {
namespace {

// Registers through the pool, after all checks. Out of line, so that hits need no stack frame for it. Does not wait
// for the gate: it concerns host memory only.
__attribute__((noinline)) pinrail_status_t call_pool_remote(const pinrail_mpool_t* pool,
                                                            const pinrail_gpu_block_t* block, size_t offset,
                                                            size_t length, uint32_t access, uint32_t flags,
                                                            pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_register_remote";
  if (pool == nullptr || block == nullptr || handle_out == nullptr) {
    return refuse(kCall, "pool, block or handle_out is NULL");
  }
  if (length == 0) return refuse(kCall, "length is 0");
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const char* const fault = fault_of_access(access_and_flags);
  if (fault != nullptr) return refuse(kCall, fault);
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if (pool->ops->register_remote == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_status_t status =
      pool->ops->register_remote(pool->module, thread, block, offset, length, access_and_flags, handle_out);
  return report_if_bad(status, kCall, "the block is damaged, or the range does not lie within its allocation");
}

// Registers the allocation through the pool, if it has as many bytes as the request needs. Out of line, so that hits
// keep few arguments in registers for it.
__attribute__((noinline, cold)) pinrail_status_t register_whole_allocation(const pinrail_mpool_t* pool,
                                                                           const pinrail_gpu_block_t* block,
                                                                           size_t bytes, pinrail_handle_t* handle_out) {
  return call_pool_remote(pool, block, 0, bytes, 0, 0, handle_out);
}

// The reference was counted, but the entry was no longer valid: rolls the count back and registers through the pool.
__attribute__((noinline, cold)) pinrail_status_t retry_after_rollback(const pinrail_mpool_t* pool,
                                                                      const pinrail_gpu_block_t* block, size_t bytes,
                                                                      pinrail_handle_t* handle_out,
                                                                      const pinrail_thread_t* thread,
                                                                      const pinrail_registration_t* reg) {
  references::roll_back(thread, reg);
  return register_whole_allocation(pool, block, bytes, handle_out);
}

}  // namespace
}  // namespace pinrail::front

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
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  front::handle_fork();
  if (pool->ops->export_range == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  gate::wait_until_released();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_status_t status = pool->ops->export_range(pool->module, thread, base, length, block_out, offset_out);
  return front::report_if_bad(status, kCall, "the range does not lie within one allocation");
}

pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t* pool, const pinrail_gpu_block_t* block, size_t offset,
                                               size_t length, uint32_t access, uint32_t flags,
                                               pinrail_handle_t* handle_out) {
  pinrail_thread_t* const thread = thread::current_thread;
  if (pool == nullptr || block == nullptr || handle_out == nullptr || flags != 0 || !gate::is_open()) {
    return front::call_pool_remote(pool, block, offset, length, access, flags, handle_out);
  }
  const allocation_table::BlockView view(*block);
  const size_t end = offset + length;
  if ((access & ~uint32_t{PINRAIL_RIGHTS_MASK}) != 0 || !is_inside(view.length, offset, length)) {
    return front::call_pool_remote(pool, block, offset, length, access, flags, handle_out);
  }
  const pinrail_allocation_table_t* const table = pool->shortcut.allocations;
  if (table == nullptr || !has_known_head(*block)) {
    return front::register_whole_allocation(pool, block, end, handle_out);
  }
  using allocation_table::SlotChoice, allocation_table::Taken;
  pinrail_handle_t handle;
  const Taken taken = allocation_table::try_take_block<SlotChoice::first>({thread, pool}, *table, view, &handle);
  if (taken == Taken::counted_but_invalid)
    return front::retry_after_rollback(pool, block, end, handle_out, thread, handle.reg);
  if (taken == Taken::no) return front::register_whole_allocation(pool, block, end, handle_out);
  *handle_out = handle;
  return PINRAIL_SUCCESS;
}
