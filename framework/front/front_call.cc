// SPDX-License-Identifier: BSD-3-Clause
// Calls on a pool: check the arguments, forward.
#include "base/core/registration.h"
#include "base/core/registration_arena.h"
#include "base/core/thread.h"
#include "framework/front/front.h"
#include "framework/monitor/monitor.h"

namespace pinrail::front {
namespace {

constexpr uint32_t kAccessMask = uint32_t{PINRAIL_RIGHTS_MASK} | uint32_t{PINRAIL_TRAITS_MASK};

bool is_range(const void* addr, size_t length) {
  return addr != nullptr && length != 0 && fits(reinterpret_cast<uintptr_t>(addr), length);
}

pinrail_mpool_request_t request_of(const void* addr, size_t length, uint32_t access, uint32_t flags) {
  return {reinterpret_cast<uintptr_t>(addr), length, access & PINRAIL_RIGHTS_MASK, access & PINRAIL_TRAITS_MASK, flags};
}

// A forced destroy left it without a pool: the last drop ends it, and that is all (R10). Memory that was counted per
// thread is not used again: cells may still name it (C2 of references.h).
pinrail_status_t drop_orphan(pinrail_handle_t handle) {
  uint64_t word;
  const Drop dropped = drop_shared(handle, &word);
  if (dropped == Drop::stale) return PINRAIL_ERR_BAD_PARAM;
  if (dropped == Drop::done) return PINRAIL_SUCCESS;
  if ((word & state::kPerThread) != 0) {
    state::renew(handle.reg);
  } else {
    arena::free(handle.reg);
  }
  return PINRAIL_SUCCESS;
}

// Whether the handle is of a registration that its pool still has.
bool is_current(pinrail_handle_t handle) {
  if (handle.reg == nullptr) return false;
  const uint64_t word = state::load(handle.reg);
  return state::generation(word) == handle.generation && (word & state::kOrphan) == 0;
}

bool is_inside(pinrail_handle_t handle, size_t offset, size_t length) {
  return offset <= handle.reg->length && length <= handle.reg->length - offset;
}

}  // namespace
}  // namespace pinrail::front

using namespace pinrail;
using front::is_range;

pinrail_status_t pinrail_mpool_register(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                        uint32_t flags, pinrail_handle_t* handle_out) {
  if (pool == nullptr || handle_out == nullptr || !is_range(addr, length)) return PINRAIL_ERR_BAD_PARAM;
  if ((access & ~front::kAccessMask) != 0 || (flags & ~uint32_t{PINRAIL_FLAGS_MASK}) != 0) return PINRAIL_ERR_BAD_PARAM;
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_mpool_request_t request = front::request_of(addr, length, access, flags);
  pinrail_registration_t* reg;
  const pinrail_status_t status = pool->ops->register_mem(pool->module, thread, &request, &reg);
  if (status == PINRAIL_SUCCESS) *handle_out = {reg, generation_of(reg)};
  return status;
}

pinrail_status_t pinrail_mpool_find(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                    pinrail_handle_t* handle_out) {
  if (pool == nullptr || handle_out == nullptr || !is_range(addr, length)) return PINRAIL_ERR_BAD_PARAM;
  if ((access & ~front::kAccessMask) != 0) return PINRAIL_ERR_BAD_PARAM;
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_mpool_request_t request = front::request_of(addr, length, access, 0);
  pinrail_registration_t* reg;
  const pinrail_status_t status = pool->ops->find(pool->module, thread, &request, &reg);
  if (status == PINRAIL_SUCCESS) *handle_out = {reg, generation_of(reg)};
  return status;
}

pinrail_status_t pinrail_mpool_deregister(pinrail_handle_t handle) {
  if (handle.reg == nullptr) return PINRAIL_ERR_BAD_PARAM;
  // The pool is looked at only if the handle is of this life: else it may be gone.
  const uint64_t word = state::load(handle.reg);
  if (state::generation(word) != handle.generation) return PINRAIL_ERR_BAD_PARAM;
  if ((word & state::kOrphan) != 0) return front::drop_orphan(handle);
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_mpool_t* pool = handle.reg->pool;
  return pool->ops->deregister(pool->module, thread, handle);
}

pinrail_status_t pinrail_mpool_invalidate_range(pinrail_mpool_t* pool, void* addr, size_t length) {
  if (pool == nullptr || !is_range(addr, length)) return PINRAIL_ERR_BAD_PARAM;
  pool->ops->invalidate_range_hook(pool->module, reinterpret_cast<uintptr_t>(addr), length);
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_mpool_evict(pinrail_mpool_t* pool) {
  pinrail_thread_t* thread = thread::current();
  if (pool == nullptr || thread == nullptr) return PINRAIL_ERR_BAD_PARAM;
  return pool->ops->evict(pool->module, thread);
}

pinrail_status_t pinrail_mpool_progress(pinrail_mpool_t* pool) {
  pinrail_thread_t* thread = thread::current();
  if (pool == nullptr || thread == nullptr) return PINRAIL_ERR_BAD_PARAM;
  return pool->ops->progress(pool->module, thread);
}

pinrail_status_t pinrail_mpool_read_stats(pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats_out) {
  if (pool == nullptr || stats_out == nullptr || stats_out->size != sizeof(*stats_out)) return PINRAIL_ERR_BAD_PARAM;
  return pool->ops->stats(pool->module, stats_out);
}

pinrail_status_t pinrail_mpool_device_read(pinrail_handle_t handle, size_t offset, void* into, size_t length) {
  if (!front::is_current(handle) || into == nullptr || !front::is_inside(handle, offset, length)) {
    return PINRAIL_ERR_BAD_PARAM;
  }
  const pinrail_registrar_t& table = handle.reg->pool->registrar->table;
  if (table.device_read == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  return guarded([&] { return table.device_read(table.context, handle.reg, offset, into, length); });
}

pinrail_status_t pinrail_mpool_device_write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) {
  if (!front::is_current(handle) || from == nullptr || !front::is_inside(handle, offset, length)) {
    return PINRAIL_ERR_BAD_PARAM;
  }
  const pinrail_registrar_t& table = handle.reg->pool->registrar->table;
  if (table.device_write == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  return guarded([&] { return table.device_write(table.context, handle.reg, offset, from, length); });
}

void pinrail_monitor_report(void* addr, size_t length) {
  monitor::report_hook(reinterpret_cast<uintptr_t>(addr), length);
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
