// SPDX-License-Identifier: BSD-3-Clause
// Calls that steer a pool: events that the program reports, evict, progress, ft_event, statistics.
//
// Context  API context. Only functions whose names end in _hook and pinrail_mpool_invalidate_range() may run in a hook.
// Locks    the caller holds no lock, and no function here holds one while it calls the pool (pool->ops), which takes
//          its own locks.
#include <cstring>

#include "base/core/struct_size.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/cause_scope.h"
#include "base/sync/gate.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/record.h"
#include "framework/front/refuse.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/gc_thread.h"

namespace pinrail::front {
namespace {

// Whether a program of this or of an older version may have passed it: misses by reason were added at the end.
constexpr bool is_size_of_stats(size_t size) {
  return size >= offsetof(pinrail_mpool_stats_t, misses_cold) && size <= sizeof(pinrail_mpool_stats_t) &&
         ends_between_fields<pinrail_mpool_stats_t>(size);
}

// Invalidates the range in the pool. Hook context.
void deliver_to_pool_hook(void* pool_pointer, uintptr_t base, size_t length) {
  const auto* const pool = static_cast<const pinrail_mpool_t*>(pool_pointer);
  pool->ops->invalidate_range_hook(pool->module, base, length);
}

// Invalidates the range in the pool, later if this thread holds a lock of hooks. If no room is left to defer the
// event, everything is reported instead. Hook context.
void invalidate_hook(pinrail_mpool_t* pool, uintptr_t base, size_t length) {
  if (!deferred::must_defer_hook()) return deliver_to_pool_hook(pool, base, length);
  if (!deferred::defer_hook(deliver_to_pool_hook, pool, base, length)) monitor::report_hook(0, 0, UINTPTR_MAX);
}

}  // namespace
}  // namespace pinrail::front

using namespace pinrail;

// Hook context. Reports no error, because it may run in a signal handler.
pinrail_status_t pinrail_mpool_invalidate_range(pinrail_mpool_t* pool, void* addr, size_t length) {
  if (pool == nullptr || front::fault_of_range(addr, length) != nullptr) return PINRAIL_ERR_BAD_PARAM;
  if (gate::is_child()) return PINRAIL_SUCCESS;  // the parent's pool: no thread here will ever release its locks
  const bool is_host = (pool->registrar->table.kinds & PINRAIL_KIND_HOST) != 0;
  const Span span = Span::of(addr, length);
  const Span lost = is_host ? monitor::whole_pages_hook(span) : span;
  const deferred::CauseScope cause("program");
  front::invalidate_hook(pool, lost.base, lost.length());
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_mpool_evict(pinrail_mpool_t* pool) {
  if (pool == nullptr) return front::refuse("pinrail_mpool_evict", "pool is NULL");
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  front::handle_fork();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_status_t status = pool->ops->evict(pool->module, thread);
  if (record::is_on()) record::evicted(status);
  return status;
}

pinrail_status_t pinrail_mpool_progress(pinrail_mpool_t* pool) {
  if (pool == nullptr) return front::refuse("pinrail_mpool_progress", "pool is NULL");
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  front::handle_fork();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return pool->ops->progress(pool->module, thread);
}

pinrail_status_t pinrail_mpool_ft_event(pinrail_mpool_t* pool, pinrail_ft_state_t state) {
  constexpr const char* kCall = "pinrail_mpool_ft_event";
  if (pool == nullptr) return front::refuse(kCall, "pool is NULL");
  if (state < PINRAIL_FT_CHECKPOINT || state > PINRAIL_FT_TERM) return front::refuse(kCall, "there is no such state");
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  front::handle_fork();
  if (pool->ops->ft_event == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (thread->in_registrar != 0) return PINRAIL_ERR_BUSY;  // it would wait for its own caller
  const bool gives_back = state == PINRAIL_FT_CHECKPOINT || state == PINRAIL_FT_TERM;
  if (gives_back) (void)front::give_back_unused(pool, thread, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  if (state != PINRAIL_FT_RESTART) return pool->ops->ft_event(pool->module, thread, state);
  const gc::Pause pause;  // a drain now would call the device of the previous incarnation
  return pool->ops->ft_event(pool->module, thread, state);
}

pinrail_status_t pinrail_mpool_read_stats(pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats_out) {
  constexpr const char* kCall = "pinrail_mpool_read_stats";
  if (pool == nullptr || stats_out == nullptr) return front::refuse(kCall, "pool or stats_out is NULL");
  const size_t size = stats_out->size;
  if (!front::is_size_of_stats(size)) {
    return front::refuse(kCall, "stats_out->size is not sizeof(pinrail_mpool_stats_t)");
  }
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  front::handle_fork();
  pinrail_mpool_stats_t totals{};
  const pinrail_status_t status = pool->ops->stats(pool->module, &totals);
  if (status != PINRAIL_SUCCESS) return status;
  totals.size = size;
  std::memcpy(stats_out, &totals, size);
  return PINRAIL_SUCCESS;
}
