// SPDX-License-Identifier: BSD-3-Clause
// engine.h - what all pools do alike: a place in the budget, eviction, the gc list, destroy, ft_event and statistics.
//
// Self is the pool, which derives from Engine<Self, Settings> and says what is its own:
//   leave_index(reg, reason)   takes a registration that the thread owns out of what finds it; returns the reason for
//                              the registrar
//   after_close(reg)           the registrar has forgotten it
//   count_indexed()            for the statistics
//   restart(thread)            after a restart: tells the registrar, and ends in release_all(Device::restarted)
// and hides what it does otherwise: progress(), pinned_bytes(), counters().
//
// Owns     its membership in a cache and in the gc thread, and all registrations of the pool.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool, hooks
//          apart: destroy() waits for those in flight. API context. The caller holds no lock, because the registrar is
//          called (R6), and may hold references.
// Hook     what ends in _hook, alone.
//
// engine/P1  The thread whose exchange of the state word sets `last` owns the registration (registration/S2): it takes
//     it out of the index, calls the registrar, takes it out of the budget, and frees it. A hook puts it on the gc list
//     instead.
#ifndef PINRAIL_FRAMEWORK_MPOOL_ENGINE_H
#define PINRAIL_FRAMEWORK_MPOOL_ENGINE_H

#include <algorithm>
#include <utility>

#include "base/core/kernel.h"
#include "framework/mpool/pool_base.h"

namespace pinrail::mpool {

// Whether room may be made at the device, at the cost of what is idle.
enum class Room : uint8_t { as_it_is, made };

// Whether the device still has what it registered.
enum class Device : uint8_t { registered, restarted };

template <typename Self, typename Settings = PoolSettings>
class Engine : public PoolBase {
 public:
  // Drops a reference. BAD_PARAM: it was dropped before.
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
    return after_drop(thread, handle, drop(handle));
  }

  // For pinrail_mpool_evict(). NOT_FOUND: nothing is idle.
  Status evict(pinrail_thread_t* thread) {
    drain(thread, SIZE_MAX);
    return evict_one(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
  }
  // For pinrail_mpool_progress(): gives back all that is dead.
  Status progress(pinrail_thread_t* thread) {
    drain(thread, SIZE_MAX);
    return success();
  }
  // CONTINUE does nothing; RESTART abandons all; other events give back what is dead or idle.
  Status ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
    if (state == PINRAIL_FT_CONTINUE) return success();
    if (state == PINRAIL_FT_RESTART) return self()->restart(thread);
    release_idle(thread);
    return success();
  }
  // BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
  Status destroy(pinrail_thread_t* thread, uint32_t flags) {
    if (!close_if_idle(flags)) return PINRAIL_ERR_BUSY;
    if (settings_.print_stats) report_last_stats(host_, self());
    destroy_closed(thread);
    return success();
  }

  // The statistics that take no lock and follow no list: also for a forked child.
  void counters(pinrail_mpool_stats_t* stats_out) const {
    auto totals = sized<pinrail_mpool_stats_t>();
    host_->pools->add_counts(config_.pool, &totals);
    add_own_counts(&totals);
    totals.size_limit = cache_->limits().bytes;
    totals.count_limit = cache_->limits().count;
    totals.leave_pinned = settings_.leave_pinned ? 1 : 0;
    totals.evicts_idle_only = cache_->limits().bounds_idle_only ? 1 : 0;
    *stats_out = totals;
  }
  // All statistics. Walks the registrations under a lock.
  void stats(pinrail_mpool_stats_t* stats_out) {
    pinrail_mpool_stats_t totals{};
    self()->counters(&totals);
    totals.indexed = self()->count_indexed();
    cache_->count_use(this, &totals);
    const Usage usage = cache_->usage();
    totals.registered_bytes = usage.bytes;
    totals.registered_count = usage.count;
    totals.peak_registered_bytes = usage.peak_bytes;
    totals.pinned_bytes = self()->pinned_bytes();
    *stats_out = totals;
  }
  size_t max_reg_size() const { return settings_.max_reg_size; }

 protected:
  // What a drop of the handle's reference asks for.
  Status after_drop(pinrail_thread_t* thread, pinrail_handle_t handle, Drop dropped) {
    switch (dropped) {
      case Drop::stale: return PINRAIL_ERR_BAD_PARAM;
      case Drop::done: break;                          // others hold it, or it stays cached
      case Drop::idle: cache_->unpark(handle); break;  // an evictor had found it referenced, and waits for this
      case Drop::last: give_back_one(thread, handle.reg, PINRAIL_REASON_RELEASED); break;
    }
    return success();
  }

  Engine(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
      : PoolBase(component, config, settings.gc_limit), settings_(settings) {}

  // The last step of create(): from here on the gc thread comes in.
  Status join_gc_thread(int (*entry)(void* pool, pinrail_thread_t* thread), uint32_t interval_ms) {
    return host_->pools->gc_join(host_, entry, self(), interval_ms, &gc_member_);
  }
  // For the gc thread: gives back what was dead when it began. What was pushed meanwhile has woken the thread again,
  // unless the list was not empty then: 1 asks for another round.
  static int drain_entry(void* pool_pointer, pinrail_thread_t* thread) {
    auto* const pool = static_cast<Self*>(pool_pointer);
    const Status drained = guarded([&] { pool->drain(thread, SIZE_MAX); });
    return !drained.ok() || pool->cache_->has_dead(pool) ? 1 : 0;
  }

  // Gets the registration its place in the budget, if need be at the cost of idle ones (R8), which are deregistered
  // before it returns. TEMP_OUT_OF_RESOURCE: others are held, or take the room each time. OUT_OF_RESOURCE: it can never
  // fit, or what is idle is in pools that this one may not evict from. After an error it is not in the budget.
  Status admit(pinrail_thread_t* thread, pinrail_registration_t* reg, Cache::Tries* tries) {
    for (;;) {
      Victim victim;
      switch (cache_->admit(this, reg, tries, &victim)) {
        case Admission::admitted:
          if (victim.reg == nullptr) return success();
          deregister_from_device(thread, victim.reg, PINRAIL_REASON_EVICTED);
          host_->registrations->free(host_, victim.reg);
          if (settings_.empty_cache) evict_all(thread);
          return success();
        case Admission::evict_first:
          give_back_victim(thread, victim);
          if (settings_.empty_cache) evict_all(thread);
          break;
        case Admission::release_near:
          tries->ignores_releases = drain_all(thread) == 0 && !wait_for_release(thread);
          break;
        case Admission::all_held: return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
        case Admission::out_of_reach: return PINRAIL_ERR_OUT_OF_RESOURCE;
        case Admission::never: report_limit(reg, settings_); return PINRAIL_ERR_OUT_OF_RESOURCE;
      }
    }
  }
  // The same, and registers it by open(). After an error it is freed.
  template <typename Open>
  Status admit_and_open(pinrail_thread_t* thread, pinrail_registration_t* reg, Open&& open) {
    Cache::Tries tries;
    Status status = admit(thread, reg, &tries);
    if (status.ok()) {
      status = open();
      if (!status.ok()) dismiss(reg);
    }
    if (!status.ok()) host_->registrations->free(host_, reg);
    return status;
  }
  // Calls the registrar. If it is out of resources: makes room and calls it again, until it succeeds or nothing is idle
  // (R7), and then once more: what another thread was giving back when the device refused may have made room by now.
  // The status then depends on what was registered during that last call. is_hopeless(): no room would help, NOT_FOUND.
  template <typename IsHopeless>
  Status call_registrar(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                        pinrail_registration_t* reg, Room room, IsHopeless&& is_hopeless) {
    Others before;
    Cache::Tries tries;
    for (bool once_more = true;;) {
      const Status status = host_->pools->registrar_register(config_.registrar, thread, &request, reg);
      if (!status.ok() && is_hopeless()) return PINRAIL_ERR_NOT_FOUND;
      if (!status.is(PINRAIL_ERR_OUT_OF_RESOURCE) || room == Room::as_it_is) return status;
      if (cache_->is_overtaken(&tries)) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
      if (!make_room(thread) && !std::exchange(once_more, false)) {
        const Others after = cache_->others_than(reg);
        const bool was_alone = !before.are_held && !after.are_held && before.added == after.added;
        return was_alone ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
      }
      if (!once_more) before = cache_->others_than(reg);
      count_relaxed(&retries_);
    }
  }
  Status call_registrar(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                        pinrail_registration_t* reg, Room room) {
    return call_registrar(thread, request, reg, room, [] { return false; });
  }
  // Gives back dead registrations; if there are none, evicts the next idle one (empty_cache: all of them); if there is
  // none, waits a moment for what other threads are giving back. False if none of this can make room.
  bool make_room(pinrail_thread_t* thread) {
    if (drain_all(thread) > 0) return true;
    if (!evict_one(thread)) return wait_for_release(thread);
    if (settings_.empty_cache) evict_all(thread);
    return true;
  }
  // The calling thread owns it. Whatever the registrar returns, the registration is lost to the pool; the framework
  // reports an error.
  void deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                              Device device = Device::registered) {
    reason = self()->leave_index(reg, reason);
    if (device == Device::restarted) {
      host_->pools->registrar_abandon(config_.registrar, thread, reg, reason);
    } else {
      Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, reason)).ignore();
    }
    self()->after_close(reg);
  }
  // Deregisters them, takes them from the budget in one hold of the lock, and frees them. The caller owns them, and has
  // called Cache::begin_release().
  void give_back(pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count, pinrail_reason_t reason) {
    const pinrail_host_t* const host = host_;  // afterwards another thread may destroy the pool
    for (size_t i = 0; i < count; ++i) deregister_from_device(thread, regs[i], reason);
    cache_->dismiss(regs, count);
    for (size_t i = 0; i < count; ++i) host->registrations->free(host, regs[i]);
  }
  void give_back_one(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
    cache_->begin_release(1);
    give_back(thread, &reg, 1, reason);
  }
  // Of Cache::retire_next() or Cache::admit().
  void give_back_victim(pinrail_thread_t* thread, const Victim& victim) {
    static_cast<Self*>(victim.owner)->give_back(thread, &victim.reg, 1, PINRAIL_REASON_EVICTED);
    if (victim.owner != this) victim.owner->end_visit();
  }
  // Evicts the next idle registration of the cache that is_wanted(reg). False: none is idle.
  template <typename IsWanted>
  bool evict_one(pinrail_thread_t* thread, IsWanted&& is_wanted) {
    const Victim victim = cache_->retire_next(this, is_wanted);
    if (victim.reg != nullptr) give_back_victim(thread, victim);
    return victim.reg != nullptr;
  }
  bool evict_one(pinrail_thread_t* thread) { return evict_one(thread, Cache::kAny); }
  // Parameter empty_cache: everything idle goes.
  void evict_all(pinrail_thread_t* thread) {
    while (evict_one(thread)) {
    }
  }

  // Gives back what is dead, at most so many; of what events end meanwhile no more than there was. Returns how many.
  // Few at a time, because a thread may wait for the room while the device deregisters the others.
  size_t drain(pinrail_thread_t* thread, size_t most) {
    constexpr size_t kTogether = 8;
    uint64_t bytes = gc_list.bytes();
    size_t given_back = 0;
    while (given_back < most) {
      pinrail_registration_t* regs[kTogether];
      const size_t count = cache_->take_dead(this, regs, std::min(kTogether, most - given_back));
      if (count == 0) break;
      uint64_t taken = 0;
      for (size_t i = 0; i < count; ++i) taken += charge_of(regs[i]);
      give_back(thread, regs, count, PINRAIL_REASON_RELEASED);  // an event has left its own reason
      given_back += count;
      if (taken >= bytes && gc_list.bytes() != 0 && most == SIZE_MAX) break;
      bytes -= std::min(bytes, taken);
    }
    return given_back;
  }
  // Gives back in a call that may miss: all if more than gc_limit bytes are dead (E4), otherwise some. Not inside a
  // registrar, which may be deregistering such ones.
  void drain_in_call(pinrail_thread_t* thread) {
    if (thread->in_registrar == 0 && has_dead()) drain(thread, gc_list.is_due() ? SIZE_MAX : kInOneCall);
  }
  // Drains the pools of the cache that have something dead and that a call into this one may drain; if these are more
  // than it can visit, the next call finds the others.
  size_t drain_all(pinrail_thread_t* thread) {
    constexpr size_t kPools = 64;
    Member* pools[kPools];
    const size_t count = cache_->visit_dead(this, pools, kPools);
    size_t given_back = 0;
    for (size_t i = 0; i < count; ++i) {
      given_back += static_cast<Self*>(pools[i])->drain(thread, kInOneCall);
      pools[i]->end_visit();
    }
    return given_back;
  }

  // The pool is closed. Ends with `delete this`.
  void destroy_closed(pinrail_thread_t* thread) {
    if (gc_member_ != nullptr) host_->pools->gc_leave(host_, gc_member_);
    while (visitors.load(std::memory_order_acquire) != 0) {  // acquire: pairs with end_visit()
      Guard guard(cache_->mutex);
      cache_->released.wait_for(cache_->mutex, std::chrono::microseconds(200));
    }
    release_all(thread, Device::registered);
    delete self();
  }
  // Only hooks come into this pool meanwhile. An event of a callback must still reach what was not given back yet
  // (R12), so each registration leaves the index only when it is its turn. What hooks end comes onto the gc list, and
  // other pools of the cache may move this one's registrations in the array: so it looks again until nothing is left.
  void release_all(pinrail_thread_t* thread, Device device) {
    for (bool is_left = true; is_left;) {
      is_left = false;
      pinrail_registration_t* batch[kBatch];
      while (const size_t count = cache_->take_dead(this, batch, kBatch)) {
        for (size_t i = 0; i < count; ++i) release_one(thread, batch[i], device);
      }
      size_t place = SIZE_MAX;
      while (const size_t count = cache_->seize_of(this, &place, batch, kBatch, &is_left)) {
        for (size_t i = 0; i < count; ++i) release_one(thread, batch[i], device);
      }
    }
  }
  // The calling thread owns it. Handles that are held may be deregistered meanwhile, by the registrar's function too.
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, Device device) {
    deregister_from_device(thread, reg, PINRAIL_REASON_FINALIZED, device);
    cache_->dismiss(&reg, 1);
    if (disown(reg)) host_->registrations->free(host_, reg);
  }
  // Evicts what is idle, of this pool alone, in one walk, so that the call ends while other threads use the pool; and
  // waits until what other threads are giving back has gone.
  void release_idle(pinrail_thread_t* thread) {
    constexpr int64_t kMostMs = 1000;
    Status(self()->progress(thread)).ignore();
    pinrail_registration_t* batch[kBatch];
    size_t place = SIZE_MAX;
    while (const size_t count = cache_->retire_of(this, &place, batch, kBatch)) {
      give_back(thread, batch, count, PINRAIL_REASON_EVICTED);
    }
    const int64_t last_ms = now_ms_hook() + kMostMs;
    while (cache_->wait_for_release() && now_ms_hook() < last_ms) {
    }
  }

  // What a pool may hide.
  void after_close(pinrail_registration_t*) {}
  uint64_t pinned_bytes() { return cache_->pinned_bytes(true); }

  Self* self() { return static_cast<Self*>(this); }
  const Self* self() const { return static_cast<const Self*>(this); }

  static constexpr size_t kBatch = 64;
  // An event may end tens of thousands, and no call shall wait for all of them.
  static constexpr size_t kInOneCall = 32;

  const Settings settings_;
};

}  // namespace pinrail::mpool

#endif
