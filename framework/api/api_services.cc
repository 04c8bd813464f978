// SPDX-License-Identifier: BSD-3-Clause
// The host table: the services that components get.
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/core/own_component.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/registration/shortcut.h"
#include "base/report/report.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/own_threads.h"
#include "framework/api/api.h"
#include "framework/monitor/coverage.h"
#include "framework/monitor/mapping.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/gc_thread.h"
#include "framework/mpool/pool_area.h"
#include "framework/rcache/rcache.h"
#include "framework/registrar/registrar.h"

namespace pinrail::api {
namespace {

pinrail_status_t make_rcache(const pinrail_host_t*, const char* name, uint32_t flags, pinrail_rcache_t* rcache_out) {
  return guarded([&] { return rcache::create(*the_loader(), name, flags, rcache_out); });
}

int monitor_covers(const pinrail_host_t*, uintptr_t base, size_t length) {
  bool covered = false;
  (void)guarded([&] { covered = monitor::covers(base, length); });
  return covered ? 1 : 0;
}
// The pages first: where none counts, no mapping is looked at.
void own_pages_around(const pinrail_host_t*, uintptr_t base, size_t length, uintptr_t* low_inout,
                      uintptr_t* high_inout) {
  const Span span = Span::of(base, length);
  Span own = span;
  (void)guarded([&] {
    if (!fork_marks::needed()) own = monitor::own_pages_around(span, {*low_inout, *high_inout});
    if (own.length() != span.length()) own = monitor::private_around(span, own);
  });
  *low_inout = own.base;
  *high_inout = own.end;
}

uint64_t now_of(const pinrail_mpool_t* pool) { return pool == nullptr ? 0 : pool->recorder.now_hook(); }

__attribute__((noinline, cold)) void record_refusal(const pinrail_register_request_t& request, pinrail_mpool_t* pool,
                                                    pinrail_status_t status, int error) {
  pinrail_mpool_event_t event{};
  event.kind = PINRAIL_EVENT_REFUSED;
  event.base = reinterpret_cast<uintptr_t>(request.addr);
  event.length = request.length;
  event.status = status;
  event.error = error;
  if (pool != nullptr) record_hook(pool, &event);
}

// Host service registrar_register. E6: each miss may also check that the monitors still see all events.
pinrail_status_t register_mem(pinrail_bound_registrar_t* registrar, pinrail_thread_t* thread,
                              const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  pinrail_mpool_t* const pool = registrar->pool;
  monitor::check_on_miss();
  const int kept = std::exchange(errno, 0);  // a registrar need not set it
  const uint64_t begin = now_of(pool);
  const pinrail_status_t status = registrar::register_mem(registrar, thread, request, reg);
  const int error = errno;
  if (pool != nullptr) {
    const uint64_t taken = pool->recorder.now_hook() - begin;
    pool->recorder.note_call(taken);
    if (status == PINRAIL_SUCCESS) {
      pool->counts.add_registered(thread, mpool::charge_of(reg), taken);
    } else {
      pool->counts.add_refused(thread, taken);
    }
  }
  if (status != PINRAIL_SUCCESS) record_refusal(*request, pool, status, error);
  errno = status == PINRAIL_SUCCESS || error == 0 ? kept : error;
  return status;
}

// Host service registrar_deregister.
pinrail_status_t deregister_mem(pinrail_bound_registrar_t* registrar, pinrail_thread_t* thread,
                                pinrail_registration_t* reg, pinrail_reason_t reason) {
  pinrail_mpool_t* const pool = registrar->pool;
  const uint64_t begin = now_of(pool);
  const pinrail_status_t status = registrar::deregister_mem(registrar, thread, reg, reason);
  if (pool == nullptr) return status;
  pinrail_mpool_event_t event{};
  event.time_ns = pool->recorder.now_hook();
  event.kind = PINRAIL_EVENT_RELEASED;
  event.base = reinterpret_cast<uintptr_t>(reg->base);
  event.length = reg->length;
  event.reason = reason;
  event.status = status;
  pool->counts.add_released(thread, reason, mpool::charge_of(reg), event.time_ns - begin);
  record_hook(pool, &event);
  return status;
}

// Host service registrar_abandon.
void abandon_mem(pinrail_bound_registrar_t* registrar, pinrail_thread_t* thread, pinrail_registration_t* reg,
                 pinrail_reason_t reason) {
  registrar::abandon_mem(registrar, thread, reg, reason);
  if (registrar->pool != nullptr) registrar->pool->counts.add_released(thread, reason, mpool::charge_of(reg), 0);
}

pinrail_status_t gc_join(const pinrail_host_t*, gc::Drain drain, void* arg, uint32_t every_ms, void** member_out) {
  return guarded([&] { return gc::join(drain, arg, every_ms, nullptr, member_out); });
}
void gc_leave(const pinrail_host_t*, void* member) { gc::leave(member); }
void gc_wake_hook(const pinrail_host_t*, pinrail_gc_when_t when) { gc::wake_hook(when); }

pinrail_status_t open_registrar(const pinrail_host_t*, const char* name, pinrail_bound_registrar_t** registrar_out,
                                const pinrail_registrar_t** table_out) {
  return guarded([&] {
    pinrail_registrar_choice_t choice{};
    choice.name = name;
    std::unique_ptr<pinrail_bound_registrar> bound;
    const Status status = registrar::bind(*the_loader(), choice, 0, &bound);
    if (!status.ok()) return status;
    *table_out = &bound->table;
    *registrar_out = bound.release();
    return status;
  });
}
void close_registrar(const pinrail_host_t*, pinrail_bound_registrar_t* registrar) { delete registrar; }

int in_registrar(const pinrail_thread_t* thread) {
  const bool is_inside = thread == nullptr ? must_not_wait() : thread->in_registrar != 0 || is_inside_fork();
  return is_inside ? 1 : 0;
}

void count_hit(pinrail_mpool_t* pool, const pinrail_thread_t* thread) { pool->counts.add_hit(thread); }
void add_counts(const pinrail_mpool_t* pool, pinrail_mpool_stats_t* stats_inout) {
  const PoolCounts::Line sum = pool->counts.sum();
  uint64_t* const by_reason = &stats_inout->misses_cold;  // these fields are in the order of the reasons
  static_assert(offsetof(pinrail_mpool_stats_t, misses_not_kept) ==
                offsetof(pinrail_mpool_stats_t, misses_cold) + PINRAIL_MISS_NOT_KEPT * sizeof(uint64_t));
  stats_inout->hits += sum.hits;
  stats_inout->registrar_ns += sum.registrar_ns;
  for (size_t i = 0; i < PINRAIL_MISS_REASONS; ++i) {
    by_reason[i] += sum.misses[i];
    stats_inout->misses += sum.misses[i];
  }
}
// The pool's call has missed.
void record_miss(pinrail_mpool_t* pool, const pinrail_thread_t* thread, const pinrail_mpool_event_t* event) {
  pool->counts.add_miss(thread, event->reason);
  record_hook(pool, event);
}

// What components that are not Pinrail's own do with references and states. Pinrail's own pools and indexes use
// registration.h directly.
static_assert(PINRAIL_STATE_INDEXED == state::kIndexed && PINRAIL_STATE_DEAD == state::kDead &&
                  PINRAIL_STATE_OWNED == state::kLast && PINRAIL_KEEP_REFERENCED == state::kTransient,
              "the public bits are those of the state word");
constexpr uint64_t kPublicBits = PINRAIL_STATE_INDEXED | PINRAIL_STATE_DEAD | PINRAIL_STATE_OWNED;

pinrail_drop_t drop_reference(pinrail_handle_t handle) {
  switch (drop(handle)) {
    case Drop::stale: return PINRAIL_DROP_STALE;
    case Drop::last: return PINRAIL_DROP_LAST;
    default: return PINRAIL_DROP_DONE;
  }
}

constexpr pinrail_registration_services_t make_registration_services() {
  using Reg = pinrail_registration_t;
  auto table = sized<pinrail_registration_services_t>();
  table.alloc = [](const pinrail_host_t*, size_t tail_size, size_t area_size, Reg** reg_out) {
    return arena::allocate(tail_size, area_size, reg_out).code();
  };
  table.free = [](const pinrail_host_t*, Reg* reg) { arena::free(reg); };
  table.area = [](const pinrail_host_t*, const Reg* reg) { return arena::area_of(reg); };
  table.state = [](const Reg* reg) { return static_cast<uint32_t>(state::load(reg) & kPublicBits); };
  table.generation = generation_of;
  table.references = references_of;
  table.take = [](Reg* reg) {
    const bool is_taken = take(reg, state::load(reg));
    if (is_taken) mark_used(reg);
    return is_taken ? 1 : 0;
  };
  table.drop = drop_reference;
  table.mark_indexed = [](Reg* reg, uint64_t marks) {
    state::publish(reg, state::kIndexed | (marks & (state::kTransient | state::kQuick)));
  };
  table.mark_uncached = [](Reg* reg) { state::publish(reg, state::kDead); };
  table.mark_dead_hook = [](Reg* reg) { return kill(reg) == Killed::owned ? 1 : 0; };
  table.retire = [](Reg* reg) { return retire(reg, state::load(reg)) ? 1 : 0; };
  table.orphan = [](Reg* reg) { return seize(reg) && disown(reg) ? 1 : 0; };
  return table;
}
constexpr pinrail_registration_services_t kRegistrations = make_registration_services();

constexpr pinrail_pool_services_t kPools = {sizeof(pinrail_pool_services_t),
                                            register_mem,
                                            deregister_mem,
                                            abandon_mem,
                                            registrar::restart,
                                            in_registrar,
                                            open_registrar,
                                            close_registrar,
                                            make_rcache,
                                            gc_join,
                                            gc_leave,
                                            gc_wake_hook,
                                            add_counts,
                                            own_pages_around,
                                            count_hit,
                                            record_miss,
                                            record_hook};

pinrail_host_shortcut_t host_shortcut{};

constexpr pinrail_monitor_services_t kMonitors = {
    sizeof(pinrail_monitor_services_t),
    []() -> int { return monitor::coverage.files_hook().is_empty_hook() ? 0 : 1; },
    [](const pinrail_file_part_t* part) { monitor::report_file_hook(*part); },
    gate::ask_first,
    own_threads::begin,
    own_threads::end};

const void* extension(const pinrail_host_t*, const char* name, uint32_t version) {
  const bool is_for_monitors = monitor_services::kName == std::string_view(name);
  if (is_for_monitors && version == monitor_services::kVersion) return &kMonitors;
  return shortcut::is_asked_for(name, version) ? &host_shortcut : nullptr;
}

}  // namespace

pinrail_host_t make_services() {
  host_shortcut = {sizeof(host_shortcut), arena::chunks(), monitor::is_told_afterwards, monitor::was_reported};
  auto host = sized<pinrail_host_t>();
  host.abi = PINRAIL_HOST_ABI;
  host.registrations = &kRegistrations;
  host.pools = &kPools;
  host.extension = extension;
  host.monitor_subscribe = [](const pinrail_host_t*, uint32_t kinds, monitor::Hook hook, void* arg, void** entry_out) {
    return monitor::subscribe(kinds, hook, arg, entry_out).code();
  };
  host.monitor_unsubscribe = [](const pinrail_host_t*, void* entry) { monitor::unsubscribe(entry); };
  host.monitor_works = [](const pinrail_host_t*, const char** why_out) { return monitor::works(why_out) ? 1 : 0; };
  host.monitor_covers = monitor_covers;
  host.monitor_report_hook = monitor::report_of_hook;
  host.monitor_blind = [](const pinrail_host_t* whose, const char* why) {
    (void)guarded([=] { monitor::blind(whose, why); });
  };
  host.monitor_hold_hook = [](const pinrail_host_t*) { gate::hold_hook(); };
  host.monitor_release_hook = [](const pinrail_host_t*) { gate::release_hook(); };
  host.depth_hook = deferred::depth_hook;
  host.deliver_deferred_hook = deferred::deliver_hook;
  return host;
}

}  // namespace pinrail::api
