// SPDX-License-Identifier: BSD-3-Clause
// register, find and deregister: hits are answered here, all else by the pool.
//
// Context  API context.
// Locks    the caller holds no lock, and no function here holds one while it calls the pool (pool->ops), which takes
//          its own locks.
// References  register and find return a reference, deregister drops it. The caller may hold other references.
//
// pinrail/pinrail.h documents the public functions. HACKING, section 8, defines reference slot, start table,
// incarnation, claim, rollback and bucket. A note is what a thread stores when it takes a reference by the start table,
// so that the release need not read the registration (base/hit/note.h).
#include <pinrail/pin.h>

#include "base/core/likely.h"
#include "base/core/no_cancel.h"
#include "base/hit/allocation_table.h"
#include "base/hit/recent.h"
#include "base/hit/start_table.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/refuse.h"
#include "framework/mpool/allocator.h"

namespace pinrail::front {
namespace {

constexpr const char* kNoWholePages = "the range, in whole pages, does not lie within memory that can be registered";
constexpr const char* kPoolIsCorrupt = "the pool in the registration is overwritten (rule C6)";
constexpr const char* kDeregister = "pinrail_mpool_deregister";

// The thread's hit counter in a pool that lends its start table. Counters of threads lie 128 bytes apart.
uint64_t* hits_of(const pinrail_mpool_t* pool, const pinrail_thread_t* thread) {
  return pool->shortcut.hits + size_t{16} * thread->index;
}

// A range within a chunk that pinrail_mpool_prepin_start() has yet to register is registered now, ahead of all others,
// so that the request hits it. What is cached already, or was asked for inside a registrar, is not delayed.
__attribute__((noinline)) void pin_queued_chunk(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access) {
  const pinrail_thread_t* const thread = thread::current();
  if (is_inherited(pool) || thread == nullptr || thread->in_registrar != 0) return;
  const NoCancel no_cancel;  // another thread would wait for the chunk for ever
  const Span span = Span::of(addr, length);
  const mpool::PoolWorks::Work work = pool->works.find_queued(span, access);
  if (work == nullptr) return;
  {
    const deferred::CallerScope outside;
    pinrail_handle_t cached;
    if (pinrail_mpool_find(pool, addr, length, access, &cached) == PINRAIL_SUCCESS) {
      Status(pinrail_mpool_deregister(cached)).ignore();
      return;
    }
  }
  work->pin_now(span);
}

// Whether the thread may ask the pool's start table, which serves only requests without flags, for this access.
inline bool lends_start_table(const pinrail_thread_t* thread, const pinrail_mpool_t* pool, uint32_t access) {
  return (access & ~kAccessMask) == 0 && pool != nullptr && thread->index < pool->shortcut.hit_threads;
}

// Stores a request that was just answered by this reference among the thread's recent requests, if the start table has
// its registration.
__attribute__((noinline, cold)) void remember(const pinrail_mpool_t* pool, uintptr_t addr, uint32_t access,
                                              pinrail_handle_t handle) {
  const pinrail_thread_t* const thread = thread::current_thread;
  start_table::Found found;
  if (!start_table::look_up_held(*pool->shortcut.start_table, handle, &found)) return;
  recent::remember(thread, addr, pool, access, found, hits_of(pool, thread));
}

// The pool has answered a request without flags, by a registration that it had or has made: remembers it if it repeats.
// So a buffer that an event has ended in between is remembered as soon as it is registered again.
inline void finish_answer(const pinrail_thread_t* thread, const pinrail_mpool_t* pool, uintptr_t addr, uint32_t access,
                          pinrail_handle_t handle) {
  if (!lends_start_table(thread, pool, access)) return;
  // An entry would count in the near slot: if that counts another registration, or is not the thread's own, leaves all
  // as it is.
  if (!references::names(references::load_slot(references::near_ref_slot(thread, handle.reg)), handle.reg)) return;
  const uintptr_t key = recent::key_of(pool, addr);
  if (recent::is_asked_again(recent::place_of(thread, key).key, key)) remember(pool, addr, access, handle);
}

// Registers through the pool, after all checks. Out of line, so that hits need no stack frame for it. It has the
// parameters of pinrail_mpool_register(), which jumps to it without moving them.
__attribute__((noinline)) pinrail_status_t call_pool(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                                     uint32_t flags, pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_register";
  const uint64_t access_and_flags = access | uint64_t{flags} << PINRAIL_ACCESS_FLAGS_SHIFT;
  const char* const fault = fault_of_request(pool, addr, length, access_and_flags, handle_out);
  if (fault != nullptr) return refuse(kCall, fault);
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  gate::wait_until_released();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (unlikely(pool->works.serves_requests()) && flags == 0) pin_queued_chunk(pool, addr, length, access);
  const pinrail_status_t status = ask_with_room(pool, thread, [&] {
    return pool->ops->register_mem(pool->module, thread, reinterpret_cast<uintptr_t>(addr), length, access_and_flags,
                                   handle_out);
  });
  if (status == PINRAIL_SUCCESS && flags == 0)
    finish_answer(thread, pool, reinterpret_cast<uintptr_t>(addr), access, *handle_out);
  return report_if_bad(status, kCall, kNoWholePages);
}

// Counts a hit of the start table, and remembers it if it repeats. place: the request's (recent::Place).
inline pinrail_status_t finish_hit(const pinrail_thread_t* thread, const pinrail_mpool_t* pool, uintptr_t addr,
                                   uint32_t access, const pinrail_handle_t* handle, uintptr_t* place) {
  stat_counter::increment(hits_of(pool, thread));
  if (recent::is_asked_again(place, recent::key_of(pool, addr))) remember(pool, addr, access, *handle);
  return PINRAIL_SUCCESS;
}

// Looks up the start table and takes the reference in the near or the far slot. Without a match in the table the pool
// is asked. Remembers nothing: recent requests need the near slot.
__attribute__((noinline)) pinrail_status_t register_by_either_slot(pinrail_mpool_t* pool, void* pointer, size_t length,
                                                                   uint32_t access, pinrail_handle_t* handle_out) {
  const pinrail_thread_t* thread = thread::current_thread;
  if (!lends_start_table(thread, pool, access)) return call_pool(pool, pointer, length, access, 0, handle_out);
  const auto addr = reinterpret_cast<uintptr_t>(pointer);
  const size_t offset = addr & pool->shortcut.page_mask;
  start_table::Found found;
  if (!start_table::look_up(*pool->shortcut.start_table, addr - offset, offset, length, access, &found) ||
      !start_table::take(thread, found, pool, handle_out)) {
    return call_pool(pool, pointer, length, access, 0, handle_out);
  }
  stat_counter::increment(hits_of(pool, thread));
  return PINRAIL_SUCCESS;
}

// A reference was counted of the registration that the table named, which then was no longer valid: rolls the count
// back and looks up again.
__attribute__((noinline)) pinrail_status_t retry_after_rollback(pinrail_mpool_t* pool, void* pointer, size_t length,
                                                                uint32_t access, pinrail_handle_t* handle_out,
                                                                const pinrail_registration_t* reg) {
  references::roll_back(thread::current_thread, reg);
  return register_by_either_slot(pool, pointer, length, access, handle_out);
}

// No recent request answers: looks up the start table. In all but the usual cases, a table that does not grow and a
// free near reference slot, register_by_either_slot() continues.
__attribute__((noinline)) pinrail_status_t register_by_start_table(pinrail_mpool_t* pool, void* pointer, size_t length,
                                                                   uint32_t access, uintptr_t* place,
                                                                   pinrail_handle_t* handle_out) {
  const pinrail_thread_t* const thread = thread::current_thread;
  const auto addr = reinterpret_cast<uintptr_t>(pointer);
  if (!lends_start_table(thread, pool, access) || !start_table::is_at_rest(*pool->shortcut.start_table))
    return register_by_either_slot(pool, pointer, length, access, handle_out);
  const pinrail_start_table_t& table = *pool->shortcut.start_table;
  const uintptr_t base = addr & ~pool->shortcut.page_mask;
  start_table::Found found;
  if (!start_table::read(table, start_table::find_at_rest(table, base), base, addr - base, length, access, &found))
    return call_pool(pool, pointer, length, access, 0, handle_out);
  using start_table::Taken;
  const Taken taken = start_table::take_first(thread, found, pool, handle_out);
  if (taken == Taken::bucket_changed) return retry_after_rollback(pool, pointer, length, access, handle_out, found.reg);
  if (taken == Taken::slot_in_use) return register_by_either_slot(pool, pointer, length, access, handle_out);
  return finish_hit(thread, pool, addr, access, handle_out, place);
}

// Registers by the request that has the entry, which could not answer it.
pinrail_status_t register_instead(recent::Entry* entry, size_t length, pinrail_handle_t* handle_out,
                                  recent::Refused why) {
  uintptr_t* const key = recent::place_of(thread::current_thread, entry).key;
  auto* const pool = static_cast<pinrail_mpool_t*>(const_cast<void*>(entry->pool));
  const uintptr_t addr = *key ^ reinterpret_cast<uintptr_t>(pool);
  void* const pointer = reinterpret_cast<void*>(addr);  // NOLINT(performance-no-int-to-ptr)
  const uint32_t access = entry->access;
  using recent::Refused;
  if (why == Refused::slot_in_use) return register_by_either_slot(pool, pointer, length, access, handle_out);
  *key = recent::once(*key);  // the entry is to be filled again
  if (why == Refused::outdated) return register_by_start_table(pool, pointer, length, access, key, handle_out);
  return retry_after_rollback(pool, pointer, length, access, handle_out, recent::reg_of(entry->tag));
}

// The entry matches the request, but could not answer it. Has the request from there, so that the usual way need not
// keep it in registers.
__attribute__((noinline)) pinrail_status_t register_anew(recent::Entry* entry, size_t length,
                                                         pinrail_handle_t* handle_out, recent::Refused why) {
  const auto instead = [=](recent::Refused refused) { return register_instead(entry, length, handle_out, refused); };
  if (why != recent::Refused::outdated || !recent::renew(entry)) return instead(why);
  return recent::answer(*entry, entry->pool, handle_out, instead);
}

// Drops a reference to a registration whose pool was destroyed by force: the last drop frees its memory and does
// nothing else (R10). References that were counted per thread were summed by the destroy. BAD_PARAM: the handle is
// stale.
pinrail_status_t drop_orphan(pinrail_handle_t handle, uint64_t word) {
  bool is_last;
  if ((word & state::kPerThread) != 0) {
    const int dropped = references::settle_dead(handle, PINRAIL_DEAD_DROP);
    if (dropped < 0) return refuse(kDeregister, kHandleIsGone);
    is_last = dropped == 1;
  } else {
    const Drop dropped = drop_shared(handle, &word);
    if (dropped == Drop::stale) return refuse(kDeregister, kHandleIsGone);
    is_last = dropped == Drop::was_last;
  }
  if (is_last) arena::free(handle.reg);
  return PINRAIL_SUCCESS;
}

// Drops a reference where the short ways do not apply: an empty or stale handle, an orphan, or a registration that is
// dead and summed. BAD_PARAM: the handle is empty or stale.
__attribute__((noinline)) pinrail_status_t deregister_slow_path(pinrail_handle_t handle) {
  if (handle.reg == nullptr) return refuse(kDeregister, "the handle is empty: its reg is NULL");
  const uint64_t word = state::load(handle.reg);
  if (state::generation(word) != handle.generation) return refuse(kDeregister, kHandleIsGone);
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if ((word & state::kOrphan) != 0) return drop_orphan(handle, word);
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_mpool_t* pool = handle.reg->pool;
  check_known(pool);
  if (pool == nullptr) return refuse(kDeregister, kPoolIsCorrupt);
  return report_if_bad(pool->ops->deregister(pool->module, thread, handle), kDeregister, kHandleIsGone);
}

// Tells the pool that the caller has dropped a reference to a dead registration. The pool still exists: destroying it
// excludes calls with its handles. Out of line, because it is rare.
__attribute__((noinline)) pinrail_status_t notify_dropped_dead(const pinrail_mpool_t* pool, pinrail_thread_t* thread,
                                                               pinrail_handle_t handle, uint64_t state) {
  const deferred::Call call;
  if (!call) {
    // In a signal handler. The reference is dropped; a higher `rollbacks` makes the next drain of the gc list sum
    // again.
    __atomic_fetch_add(thread->rollbacks, 1, __ATOMIC_SEQ_CST);
    return PINRAIL_SUCCESS;
  }
  handle_fork();
  pool->shortcut_ops->dropped_dead(pool->module, thread, handle, state);
  return PINRAIL_SUCCESS;
}

// Drops the reference through the pool, because the pool lends no start table or the thread's slots do not have it.
__attribute__((noinline)) pinrail_status_t deregister_in_pool(const pinrail_mpool_t* pool, pinrail_handle_t handle) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return report_if_bad(pool->ops->deregister(pool->module, thread, handle), kDeregister, kHandleIsGone);
}

// Drops a reference that has no valid note: nothing was noted, or another thread took it.
__attribute__((noinline)) pinrail_status_t deregister_without_note(pinrail_thread_t* thread, pinrail_handle_t handle) {
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): a call that succeeded has set the handle
  if (handle.reg == nullptr) return deregister_slow_path(handle);
  // Reads the pool only if the handle's incarnation is the present one: otherwise the pool may be gone.
  const uint64_t ours = state::load(handle.reg) & (state::kGenerationMask | state::kOrphan | state::kSummed);
  if (ours != handle.generation) return deregister_slow_path(handle);
  const pinrail_mpool_t* pool = handle.reg->pool;
  check_known_outside_call(pool);
  if (pool == nullptr) return refuse(kDeregister, kPoolIsCorrupt);
  if (pool->shortcut.start_table == nullptr || !references::drop_dated(thread, handle.reg, thread->epoch))
    return deregister_in_pool(pool, handle);
  const uint64_t after = state::load(handle.reg);
  if ((after & state::kDead) == 0) return PINRAIL_SUCCESS;
  return notify_dropped_dead(pool, thread, handle, after);
}

// The reference was dropped by a note with this source: dates the release if it is GPU memory, and checks whether the
// registration died. Out of line and with few arguments, so that the usual release saves no registers.
__attribute__((noinline)) pinrail_status_t finish_release(pinrail_handle_t handle, const void* noted) {
  pinrail_thread_t* const thread = thread::current_thread;
  allocation_table::Entry* const entry = allocation_table::entry_of(noted);
  if (entry != nullptr) allocation_table::date_release(thread, entry, handle.reg);
  const uint64_t after = state::load(handle.reg);
  if ((after & state::kDead) == 0) return PINRAIL_SUCCESS;
  const auto* const pool =
      entry != nullptr ? note::pool_of(thread, handle.reg) : static_cast<const pinrail_mpool_t*>(noted);
  return notify_dropped_dead(pool, thread, handle, after);
}

}  // namespace

bool give_back_unused(const pinrail_mpool_t* pool, const pinrail_thread_t* thread, Status status) {
  const bool lacks = status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  mpool::Allocator* const allocator = lacks && thread->in_registrar == 0 ? pool->allocator.load() : nullptr;
  return allocator != nullptr && !is_inherited(pool) && allocator->give_back_idle();
}

}  // namespace pinrail::front

using namespace pinrail;

// Three ways, the shortest first: the thread's recent requests, the pool's start table, the pool. The first way checks
// few arguments: a remembered request was checked when it was first made.
pinrail_status_t pinrail_mpool_register(pinrail_mpool_t* pool, void* pointer, size_t length, uint32_t access,
                                        uint32_t flags, pinrail_handle_t* handle_out) {
  const auto addr = reinterpret_cast<uintptr_t>(pointer);
  const pinrail_thread_t* const thread = thread::current_thread;
  if (unlikely(flags != 0) || unlikely(!gate::is_open()) || unlikely(handle_out == nullptr))
    return front::call_pool(pool, pointer, length, access, flags, handle_out);
  const uintptr_t key = recent::key_of(pool, addr);
  const recent::Place place = recent::place_of(thread, key);
  if (!recent::matches(place, key, length, pool, access))
    return front::register_by_start_table(pool, pointer, length, access, place.key, handle_out);
  recent::Entry* const entry = place.entry;
  return recent::answer(
      *entry, pool, handle_out, [=](recent::Refused why) __attribute__((always_inline)) {
        return front::register_anew(entry, length, handle_out, why);
      });
}

pinrail_status_t pinrail_mpool_find(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                    pinrail_handle_t* handle_out) {
  constexpr const char* kCall = "pinrail_mpool_find";
  const char* const fault = front::fault_of_request(pool, addr, length, access, handle_out);
  if (fault != nullptr) return front::refuse(kCall, fault);
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  front::handle_fork();
  gate::wait_until_released();
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const pinrail_status_t status =
      pool->ops->find(pool->module, thread, reinterpret_cast<uintptr_t>(addr), length, access, handle_out);
  return front::report_if_bad(status, kCall, front::kNoWholePages);
}

// Three ways, the shortest first: the note of the thread's near reference slot, the registration's state word, the
// pool.
pinrail_status_t pinrail_mpool_deregister(pinrail_handle_t handle) {
  pinrail_thread_t* thread = thread::current_thread;
  const void* noted = nullptr;
  const note::Release dropped = note::release(thread, handle, &noted);
  if (unlikely(dropped == note::Release::no_note)) return front::deregister_without_note(thread, handle);
  if (likely(dropped == note::Release::dropped) && likely(!allocation_table::is_entry(noted))) return PINRAIL_SUCCESS;
  return front::finish_release(handle, noted);
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
