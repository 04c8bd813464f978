// SPDX-License-Identifier: BSD-3-Clause
// GPU memory across processes: check the arguments, forward.
#include "base/core/gate.h"
#include "base/core/span.h"
#include "base/core/thread.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"

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
  front::look();
  if (pool->ops->register_remote == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return pool->ops->register_remote(pool->module, thread, block, offset, length, how, handle_out);
}
