// SPDX-License-Identifier: BSD-3-Clause
// Calls that steer a pool: events that the program reports, evict, progress, ft_event, statistics; and memory events
// for other runtimes in this process.
//
// Context  API context. Only functions whose names end in _hook and pinrail_mpool_invalidate_range() may run in a hook.
// Locks    the caller holds no lock, and no function here holds one while it calls the pool (pool->ops), which takes
//          its own locks.
#include <cstring>

#include "base/registration/registration.h"
#include "framework/api/api.h"
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

// Invalidates the range in the pool. Hook context. A register that retries because of this judges the mapping anew.
void deliver_to_pool_hook(void* pool_pointer, uintptr_t base, size_t length) {
  const auto* const pool = static_cast<const pinrail_mpool_t*>(pool_pointer);
  monitor::forget_verdicts_hook(Span::of(base, length));
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
  to->event(to->arg, pointer(base), length);
}

pinrail_status_t ft_event(pinrail_mpool_t* pool, pinrail_thread_t* thread, pinrail_ft_state_t state) {
  if (pool->ops->ft_event == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  if (must_not_wait()) return PINRAIL_ERR_BUSY;  // it would wait for its own caller
  const bool gives_back = state == PINRAIL_FT_CHECKPOINT || state == PINRAIL_FT_TERM;
  if (gives_back) (void)give_back_unused(pool, thread, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  if (state != PINRAIL_FT_RESTART) return pool->ops->ft_event(pool->module, thread, state);
  if (pool->works.is_any_unfinished()) return PINRAIL_ERR_BUSY;  // what a helper thread registers would end under it
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
  const Status status =
      monitor::subscribe(0, pass_on_hook, subscription.get(), &subscription->entry, &monitor::foreign_subscriptions);
  if (status.ok()) *subscription_out = subscription.release();
  return status;
}

// Requests with options, and the details of a registration. API context; the caller holds no lock and may hold
// references. A successful register call returns one more. pinrail/pinrail.h and registrar.h document the public
// functions.

// Calls the pool, after all checks of the arguments.
pinrail_status_t register_with(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access, uint32_t flags,
                               const pinrail_register_options_t& options, pinrail_thread_t* thread,
                               pinrail_handle_t* handle_out) {
  gate::wait_until_released();
  if (pool->ops->register_with == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const bool takes_dmabuf = (pool->registrar->table.kinds & PINRAIL_KIND_DMABUF) != 0;
  if (options.dmabuf_fd >= 0 && !takes_dmabuf) return PINRAIL_ERR_NOT_SUPPORTED;
  if ((flags & PINRAIL_FLAG_PERSISTENT) == 0) flags |= PINRAIL_FLAG_CACHE_BYPASS;
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const pinrail_status_t status = ask_with_room(pool, thread, [&] {
    return pool->ops->register_with(pool->module, thread, reinterpret_cast<uintptr_t>(addr), length, access_and_flags,
                                    &options, handle_out);
  });
  if (options.dmabuf_fd < 0)
    record::took(pool, 'R', addr, length, access_and_flags, status == PINRAIL_SUCCESS ? handle_out : nullptr);
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

// Hook context. Reports no error, because it may run in a signal handler.
pinrail_status_t pinrail_mpool_invalidate_range(pinrail_mpool_t* pool, void* addr, size_t length) {
  if (pool == nullptr || api::fault_of_range(addr, length) != nullptr) return PINRAIL_ERR_BAD_PARAM;
  if (gate::is_child()) return PINRAIL_SUCCESS;  // the parent's pool: no thread here will ever release its locks
  void* const untagged = pointer(without_tag(reinterpret_cast<uintptr_t>(addr)));
  if (untagged != addr) pinrail_mpool_invalidate_range(pool, untagged, length);
  const bool is_host = (pool->registrar->table.kinds & PINRAIL_KIND_HOST) != 0;
  const Span span = Span::of(addr, length);
  const Span lost = is_host ? monitor::whole_pages_hook(span) : span;
  const deferred::CauseScope cause("program");
  if (is_host) monitor::note_reported_hook(lost.base, lost.length());
  api::invalidate_hook(pool, lost.base, lost.length());
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_mpool_evict(pinrail_mpool_t* pool) {
  if (pool == nullptr) return api::refuse(__func__, "pool is NULL");
  return api::in_call(pool, [=](pinrail_thread_t* thread) {
    const pinrail_status_t status = pool->ops->evict(pool->module, thread);
    if (record::is_on()) record::evicted(status);
    return status;
  });
}

pinrail_status_t pinrail_mpool_progress(pinrail_mpool_t* pool) {
  if (pool == nullptr) return api::refuse(__func__, "pool is NULL");
  return api::in_call(pool, [=](pinrail_thread_t* thread) { return pool->ops->progress(pool->module, thread); });
}

pinrail_status_t pinrail_mpool_ft_event(pinrail_mpool_t* pool, pinrail_ft_state_t state) {
  if (pool == nullptr) return api::refuse(__func__, "pool is NULL");
  if (state < PINRAIL_FT_CHECKPOINT || state > PINRAIL_FT_TERM) return api::refuse(__func__, "there is no such state");
  return api::in_call(pool, [=](pinrail_thread_t* thread) { return api::ft_event(pool, thread, state); });
}

pinrail_status_t pinrail_mpool_read_stats(pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats_out) {
  if (pool == nullptr || stats_out == nullptr) return api::refuse(__func__, "pool or stats_out is NULL");
  if (!api::is_size_of_stats(stats_out->size)) {
    return api::refuse(__func__, "stats_out->size is not sizeof(pinrail_mpool_stats_t)");
  }
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  api::handle_fork();
  auto totals = sized<pinrail_mpool_stats_t>();
  const pinrail_status_t status = pool->ops->stats(pool->module, &totals);
  if (status != PINRAIL_SUCCESS) return status;
  copy_sized(totals, stats_out);
  return PINRAIL_SUCCESS;
}

int pinrail_monitor_works(void) {
  api::handle_fork();
  return api::library() != nullptr && monitor::works(nullptr) ? 1 : 0;
}

int pinrail_monitor_sees_all_memory(void) {
  api::handle_fork();
  return api::library() != nullptr && monitor::sees_all_memory() ? 1 : 0;
}

int pinrail_monitor_covers(const void* addr, size_t length) {
  const deferred::Call call;
  if (!call) return 0;
  api::handle_fork();
  bool covered = false;
  (void)guarded([&] {
    covered = api::library() != nullptr && length != 0 && monitor::covers(reinterpret_cast<uintptr_t>(addr), length);
  });
  return covered ? 1 : 0;
}

pinrail_status_t pinrail_monitor_subscribe(pinrail_monitor_event_t event, void* arg,
                                           pinrail_subscription_t** subscription_out) {
  return guarded([&] { return api::subscribe(event, arg, subscription_out); });
}

void pinrail_monitor_unsubscribe(pinrail_subscription_t* subscription) {
  if (subscription == nullptr) return;
  api::handle_fork();
  monitor::unsubscribe(subscription->entry, &monitor::foreign_subscriptions);
  delete subscription;
}

// Hook or API context.
void pinrail_monitor_report(void* addr, size_t length) {
  const deferred::CauseScope cause("program");
  monitor::note_reported_hook(reinterpret_cast<uintptr_t>(addr), length);
  monitor::report_hook(0, reinterpret_cast<uintptr_t>(addr), length);
}

pinrail_status_t pinrail_mpool_register_with(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                             uint32_t flags, const pinrail_register_options_t* options,
                                             pinrail_handle_t* handle_out) {
  if (options == nullptr) return pinrail_mpool_register(pool, addr, length, access, flags, handle_out);
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const char* fault = api::fault_of_request(pool, addr, length, access_and_flags, handle_out);
  if (fault == nullptr) fault = api::fault_of_options(*options);
  if (fault != nullptr) return api::refuse(__func__, fault);
  const pinrail_status_t status = api::in_call(pool, [=](pinrail_thread_t* thread) {
    return api::register_with(pool, addr, length, access, flags, *options, thread, handle_out);
  });
  return api::report_if_bad(
      status, __func__,
      "the range, in whole pages, does not lie within the memory or the dmabuf that can be registered");
}

pinrail_status_t pinrail_registration_read_details(const pinrail_registration_t* reg,
                                                   pinrail_registration_details_t* details_out) {
  if (reg == nullptr || details_out == nullptr) {
    return api::refuse(__func__, "reg or details_out is NULL");
  }
  const void* const details = api::details_of(reg);
  if (details != nullptr) {
    std::memcpy(details_out, details, sizeof(*details_out));
  } else {
    *details_out = {reg->lkey, reg->rkey, reinterpret_cast<uintptr_t>(reg->base), 0};
  }
  return PINRAIL_SUCCESS;
}
