// SPDX-License-Identifier: BSD-3-Clause
// GPU memory across processes: check the arguments, forward.
#include "base/core/gate.h"
#include "base/core/span.h"
#include "base/core/thread.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"

namespace pinrail::front {
namespace {

// A thread's first call, or a forked child's; or the gate is held, which is nothing to GPU memory. Out of line: hits
// need no stack for it.
__attribute__((noinline)) pinrail_status_t register_remote_first(const pinrail_mpool_t* pool,
                                                                 const pinrail_gpu_handle_t* block, size_t offset,
                                                                 size_t length, uint64_t how,
                                                                 pinrail_handle_t* handle_out) {
  look();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return pool->ops->register_remote(pool->module, thread, block, offset, length, how, handle_out);
}

}  // namespace
}  // namespace pinrail::front

using namespace pinrail;

pinrail_status_t pinrail_mpool_export(pinrail_mpool_t* pool, void* addr, size_t length, pinrail_gpu_handle_t* block_out,
                                      size_t* offset_out) {
  const auto base = reinterpret_cast<uintptr_t>(addr);
  const bool sane = pool != nullptr && block_out != nullptr && offset_out != nullptr && base != 0 && length != 0;
  if (!sane || !fits(base, length)) return PINRAIL_ERR_BAD_PARAM;
  front::look();
  if (pool->ops->export_range == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  gate::wait_until_released();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return pool->ops->export_range(pool->module, thread, base, length, block_out, offset_out);
}

pinrail_status_t pinrail_mpool_register_remote(pinrail_mpool_t* pool, const pinrail_gpu_handle_t* block, size_t offset,
                                               size_t length, uint32_t access, uint32_t flags,
                                               pinrail_handle_t* handle_out) {
  if (pool == nullptr || block == nullptr || handle_out == nullptr || length == 0) return PINRAIL_ERR_BAD_PARAM;
  const uint64_t how = access | uint64_t{flags} << PINRAIL_HOW_FLAGS_SHIFT;
  if ((how & ~front::kHowMask) != 0) return PINRAIL_ERR_BAD_PARAM;
  if (pool->ops->register_remote == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_thread_t* const thread = thread::current_thread;
  if (thread == nullptr || !gate::is_open()) {
    return front::register_remote_first(pool, block, offset, length, how, handle_out);
  }
  return pool->ops->register_remote(pool->module, thread, block, offset, length, how, handle_out);
}
