// SPDX-License-Identifier: BSD-3-Clause
// Calls that steer a pool: events that the program reports, evict, progress, ft_event, statistics; and memory events
// for other runtimes in this process.
//
// Context  API context. Only functions whose names end in _hook and pinrail_mpool_invalidate_range() may run in a hook.
// Locks    the caller holds no lock, and no function here holds one while it calls the pool (pool->ops), which takes
//          its own locks.
#include <cstring>
#include <memory>

#include "base/core/struct_size.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "framework/api/api.h"
#include "framework/api/api_fork.h"
#include "framework/api/on_work.h"
#include "framework/api/record.h"
#include "framework/api/refuse.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/gc_thread.h"

// The subscriber's function with its types of the API; `entry` is its place in the monitor's list.
struct pinrail_subscription {
  pinrail_monitor_event_t event;
  void* arg;
  void* entry;
};

namespace pinrail::api {
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

// Calls the subscriber. Hook context, without a lock held.
void pass_on_hook(void* subscription, uintptr_t base, size_t length) {
  const auto* to = static_cast<pinrail_subscription_t*>(subscription);
  to->event(to->arg, reinterpret_cast<void*>(base), length);  // NOLINT(performance-no-int-to-ptr): an address
}

pinrail_status_t ft_event(pinrail_mpool_t* pool, pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (pool->ops->ft_event == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  if (thread->in_registrar != 0) return PINRAIL_ERR_BUSY;  // it would wait for its own caller
  const bool gives_back = state == PINRAIL_FT_CHECKPOINT || state == PINRAIL_FT_TERM;
  if (gives_back) (void)give_back_unused(pool, thread, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  if (state != PINRAIL_FT_RESTART) return pool->ops->ft_event(pool->module, thread, state);
  const gc::Pause pause;  // a drain now would call the device of the previous incarnation
  return pool->ops->ft_event(pool->module, thread, state);
}

// Adds a subscriber, which the monitor calls after all of ours.
Status subscribe(pinrail_monitor_event_t event, void* arg, pinrail_subscription_t** subscription_out) {
  handle_fork();
  constexpr const char* kCall = "pinrail_monitor_subscribe";
  if (event == nullptr || subscription_out == nullptr) return refuse(kCall, "event or subscription_out is NULL");
  if (library() == nullptr) return refuse(kCall, kBeforeInit);
  if (!monitor::works(nullptr)) return PINRAIL_ERR_NOT_AVAILABLE;
  auto subscription = std::make_unique<pinrail_subscription_t>(pinrail_subscription_t{event, arg, nullptr});
  const Status status = monitor::subscribe_foreign(pass_on_hook, subscription.get(), &subscription->entry);
  if (status.ok()) *subscription_out = subscription.release();
  return status;
}

}  // namespace
}  // namespace pinrail::api

using namespace pinrail;

// Hook context. Reports no error, because it may run in a signal handler.
pinrail_status_t pinrail_mpool_invalidate_range(pinrail_mpool_t* pool, void* addr, size_t length) {
  if (pool == nullptr || api::fault_of_range(addr, length) != nullptr) return PINRAIL_ERR_BAD_PARAM;
  if (gate::is_child()) return PINRAIL_SUCCESS;  // the parent's pool: no thread here will ever release its locks
  const bool is_host = (pool->registrar->table.kinds & PINRAIL_KIND_HOST) != 0;
  const Span span = Span::of(addr, length);
  const Span lost = is_host ? monitor::whole_pages_hook(span) : span;
  const deferred::CauseScope cause("program");
  api::invalidate_hook(pool, lost.base, lost.length());
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_mpool_evict(pinrail_mpool_t* pool) {
  if (pool == nullptr) return api::refuse("pinrail_mpool_evict", "pool is NULL");
  return api::in_call([=](pinrail_thread_t* thread) {
    const pinrail_status_t status = pool->ops->evict(pool->module, thread);
    if (record::is_on()) record::evicted(status);
    return status;
  });
}

pinrail_status_t pinrail_mpool_progress(pinrail_mpool_t* pool) {
  if (pool == nullptr) return api::refuse("pinrail_mpool_progress", "pool is NULL");
  return api::in_call([=](pinrail_thread_t* thread) { return pool->ops->progress(pool->module, thread); });
}

pinrail_status_t pinrail_mpool_ft_event(pinrail_mpool_t* pool, pinrail_ft_state_t state) {
  constexpr const char* kCall = "pinrail_mpool_ft_event";
  if (pool == nullptr) return api::refuse(kCall, "pool is NULL");
  if (state < PINRAIL_FT_CHECKPOINT || state > PINRAIL_FT_TERM) return api::refuse(kCall, "there is no such state");
  return api::in_call([=](pinrail_thread_t* thread) { return api::ft_event(pool, thread, state); });
}

pinrail_status_t pinrail_mpool_read_stats(pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats_out) {
  constexpr const char* kCall = "pinrail_mpool_read_stats";
  if (pool == nullptr || stats_out == nullptr) return api::refuse(kCall, "pool or stats_out is NULL");
  const size_t size = stats_out->size;
  if (!api::is_size_of_stats(size)) {
    return api::refuse(kCall, "stats_out->size is not sizeof(pinrail_mpool_stats_t)");
  }
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  api::handle_fork();
  pinrail_mpool_stats_t totals{};
  const pinrail_status_t status = pool->ops->stats(pool->module, &totals);
  if (status != PINRAIL_SUCCESS) return status;
  totals.size = size;
  std::memcpy(stats_out, &totals, size);
  return PINRAIL_SUCCESS;
}

int pinrail_monitor_works(void) {
  api::handle_fork();
  return api::library() != nullptr && monitor::works(nullptr) ? 1 : 0;
}

pinrail_status_t pinrail_monitor_subscribe(pinrail_monitor_event_t event, void* arg,
                                           pinrail_subscription_t** subscription_out) {
  return guarded([&] { return api::subscribe(event, arg, subscription_out); });
}

void pinrail_monitor_unsubscribe(pinrail_subscription_t* subscription) {
  if (subscription == nullptr) return;
  api::handle_fork();
  monitor::unsubscribe_foreign(subscription->entry);
  delete subscription;
}

// Hook or API context.
void pinrail_monitor_report(void* addr, size_t length) {
  const deferred::CauseScope cause("program");
  monitor::report_hook(0, reinterpret_cast<uintptr_t>(addr), length);
}
