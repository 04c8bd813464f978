// SPDX-License-Identifier: BSD-3-Clause
// grdma.h - one pool of registrations of host memory, or of a GPU's: the ways in and out. What they work on are the
// objects in the other headers of this folder.
//
// Owns     its index, the objects below, every registration of it.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool, hooks
//          apart: destroy() waits for those in flight.
// Hook     what ends in _hook, alone.
//
// grdma/G1  A registration is, by its state word: pending, indexed, or dead; uncached ones are born dead. Those that
//     stay when unreferenced are counted per thread (references.h), the others in their state words.
// grdma/G4  One thread alone sees that a registration is dead and unreferenced, and gives it back. Counted in the state
//     word, that is the thread of the last drop. Counted per thread, it is the evictor that claimed it; or the drain
//     that took it off the gc list or the displaced list and summed it to 0; or, if that sum found it held, the last
//     drop out of limbo (grdma_registered/M2).
// grdma/G5  No lock is held across a call of the registrar.
// grdma/G6  An event reaches every registration that may be held: the index overtakes the calls under way and searches
//     itself in one step, then what may be held outside the index is marked. What the index loses or refuses is linked
//     there before, so no registration slips through between the two steps.
// grdma/G7  A victim whose place in the budget a call of its own pool has taken stays in the index, dead, until that
//     call publishes its registration or fails; one hold of the index's lock does both. It is freed afterwards.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/core/guarded.h"
#include "base/hit/hit_counts.h"
#include "base/hit/recent.h"
#include "base/sync/assert_held.h"
#include "components/mpool/grdma/grdma_eviction_list.h"
#include "components/mpool/grdma/grdma_gc.h"
#include "components/mpool/grdma/grdma_pending.h"
#include "components/mpool/grdma/grdma_request.h"
#include "components/mpool/grdma/grdma_settings.h"
#include "framework/mpool/caches.h"

namespace pinrail::grdma {

// One opened component.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  mpool::Caches<Cache> caches;
};

// Whether room may be made at the device, at the cost of what is idle.
enum class Room : uint8_t { as_it_is, made };

// Whether the start table was searched before, without a hit.
enum class StartTable : uint8_t { seen, unseen };

class Gpu;

class Pool {  // NOLINT(clang-analyzer-optin.performance.Padding): what hits read has a line of its own
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out);
  // knows_gpu: the registrar that exports dmabufs of GPU memory, for a pool of GPU memory; NULL: of host memory.
  static Status create_one(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                           const pinrail_registrar_t* knows_gpu, Pool** pool_out);
  Status destroy(pinrail_thread_t* thread, uint32_t flags);

  // As the C table calls them: one function from the border to the index.
  static pinrail_status_t register_entry(void* pool, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                         uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status register_with(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                       const pinrail_register_options_t& options, pinrail_handle_t* handle_out);
  static pinrail_status_t deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle);
  pinrail_shortcut_t shortcut();
  // The C face dropped a reference of a dead registration of this pool or of its pool of GPU memory.
  void dropped_dead(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after);
  // The same, of this pool. after: the state word, read after the drop.
  __attribute__((noinline)) void finish_dead(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after);
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  void invalidate_range_hook(const Span& span);
  void invalidate_all_kinds_hook(const Span& span);
  Status evict(pinrail_thread_t* thread);
  // Visits the range of each registration in the index that overlaps the span and has the access. Takes the index lock,
  // not while it visits; leaves no reference and records no use.
  using QueryVisit = void (*)(void* arg, uintptr_t base, size_t length);
  Status query(pinrail_thread_t* thread, const Span& span, uint32_t access, QueryVisit visit, void* arg);
  Status progress(pinrail_thread_t* thread);
  Status ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state);
  void stats(pinrail_mpool_stats_t* stats_out) const;
  void counters(pinrail_mpool_stats_t* stats_out) const;
  size_t referenced();
  size_t max_reg_size() const { return settings_.max_reg_size; }
  const char* check() const;

 private:
  friend class Cache;
  friend class Gpu;

  // grdma_create.cc
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, Cache* cache,
       const pinrail_registrar_t* knows_gpu);
  ~Pool();
  Status connect();
  Status join_gc_thread();
  void leave_cache();

  // grdma_register.cc
  bool hit(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags, pinrail_handle_t* handle_out,
           StartTable starts = StartTable::unseen);
  __attribute__((noinline)) pinrail_status_t miss_entry(pinrail_thread_t* thread, uintptr_t base, uintptr_t end,
                                                        uint64_t access_and_flags, pinrail_handle_t* handle_out);
  __attribute__((noinline)) pinrail_status_t gpu_entry(pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                                       uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status register_gpu_range(pinrail_thread_t* thread, const Request& request, bool* is_hit_out,
                            pinrail_registration_t** reg_out);
  Status miss(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status register_inside_registrar(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status register_own(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status register_uncached(pinrail_thread_t* thread, const Request& request, Pending* own,
                           pinrail_registration_t** reg_out);
  Status register_uncovered(pinrail_thread_t* thread, const Request& request, Pending* own,
                            pinrail_registration_t** reg_out);
  Status register_indexed(pinrail_thread_t* thread, const Request& request, Pending* own,
                          pinrail_registration_t** reg_out);
  bool publish(pinrail_thread_t* thread, Pending* own);
  void stay_alone(Pending* own, pinrail_registration_t* reg, uint64_t counting);

  // grdma_device.cc
  uint64_t& buffer_id_of(pinrail_registration_t* reg) const;
  pinrail_registration_details_t* details_of(pinrail_registration_t* reg) const;
  bool has_details(const Request& request) const {
    return request.extra != nullptr || limits_of_registrar_.wants_details != 0;
  }
  size_t tail_of_registrar() const { return (limits_of_registrar_.tail_size + 7) & ~size_t{7}; }
  Status register_on_device(pinrail_thread_t* thread, const Request& request, Pending* own,
                            pinrail_counting_t counting);
  __attribute__((noinline)) void give_up(pinrail_thread_t* thread, Pending* own);
  Status admit(pinrail_thread_t* thread, Pending* own);
  void evict_for(pinrail_thread_t* thread, Pending* own);
  // There is a victim, and it is out of the index: frees it.
  void free_leaving(Pending* own) {
    host_->registrations->free(host_, own->leaving);
    own->leaving = nullptr;
  }
  Status register_range(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg, Room room);
  Status register_gpu_memory(pinrail_thread_t* thread, pinrail_register_request_t* request, pinrail_registration_t* reg,
                             Room room);
  __attribute__((noinline)) Status register_with_details(pinrail_thread_t* thread, const Request& request,
                                                         pinrail_register_request_t* wanted,
                                                         pinrail_registration_t* reg, Room room);
  Status call_registrar(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                        pinrail_registration_t* reg, Room room);
  __attribute__((noinline)) Status call_again(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                                              pinrail_registration_t* reg);
  bool make_room(pinrail_thread_t* thread);
  Status no_victim_status(const pinrail_registration_t* own);
  void report_limit(const pinrail_registration_t* reg);

  // grdma_deregister.cc
  Pool* owner_of(const pinrail_registration_t* reg);
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle);
  void drop_unused(pinrail_thread_t* thread, pinrail_handle_t handle);
  __attribute__((noinline)) Status drop_elsewhere(pinrail_thread_t* thread, pinrail_handle_t handle);
  Status drop_in_word(pinrail_thread_t* thread, pinrail_handle_t handle);
  Status drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle);
  bool seems_held(pinrail_registration_t* reg) const;
  bool confirm_held(pinrail_registration_t* reg, uint64_t generation);

  // grdma_evict.cc
  bool evict_one(pinrail_thread_t* thread);
  void evict_all(pinrail_thread_t* thread);
  static void evict_from_device(pinrail_thread_t* thread, const Victim& victim);
  void remove_from_index(pinrail_registration_t* reg);
  pinrail_registration_t* take_victim_locked() REQUIRES(cache_->mutex);
  template <typename IsEnough>
  bool visit_idle_locked(IsEnough&& is_enough) const REQUIRES(cache_->mutex);
  size_t drain_all(pinrail_thread_t* thread);

  // grdma_invalidate_hook.cc
  bool kill_hook(pinrail_registration_t* reg, pinrail_reason_t reason);
  void kill_batch_hook(pinrail_registration_t* const* regs, size_t count, pinrail_reason_t reason);
  void push_displaced_locked_hook(pinrail_registration_t* reg) REQUIRES(unindexed_.mutex);
  void displace_locked_hook(pinrail_registration_t* const* regs, size_t count) REQUIRES(unindexed_.mutex);
  void mark_unindexed_hook(const Span& span);
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void abandoned_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void invalidated_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void report_hook(void* pool, uintptr_t base, size_t length);

  // grdma_destroy.cc
  bool close_if_idle(bool force);
  void reopen();
  void destroy_closed(pinrail_thread_t* thread);
  size_t count_referenced(std::string* list_out);
  void wait_until_idle(pinrail_thread_t* thread, uint64_t rounds);
  void release_all(pinrail_thread_t* thread, Device device);
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, int64_t references, Device device);

  // grdma_ft.cc
  Status restart(pinrail_thread_t* thread);
  void release_idle(pinrail_thread_t* thread);
  void abandon_all(pinrail_thread_t* thread);

  // grdma_stats.cc
  pinrail_mpool_stats_t happened() const;

  // Of what is covered.
  bool is_kept(uint32_t flags) const {
    return settings_.leave_pinned && (flags & PINRAIL_FLAG_PERSISTENT) == 0 &&
           host_->registrations->counts_per_thread(host_) != 0;
  }
  // Asked before the device is called, while the request is pending: an event between the answer and the insert is a
  // race. GPU memory is covered by its buffer id. E5: a monitor that went blind has killed what is cached, and covers
  // nothing any more.
  bool is_covered(const Span& span) const {
    return knows_gpu_ != nullptr || host_->monitor_covers(host_, span.base, span.length()) != 0;
  }
  bool is_caller_only() const { return limits_of_registrar_.thread_mode == PINRAIL_THREAD_CALLER; }
  // The objects' name for the cache lock. Debug builds look whether the thread holds it.
  void assert_cache_held() const ASSERT_CAPABILITY(eviction_list_.mutex) ASSERT_CAPABILITY(registered_.mutex)
      ASSERT_CAPABILITY(gc_list_.mutex) ASSERT_CAPABILITY(cache_->mutex) {
    assert_rank_held(LockRank::cache);
  }
  // relaxed: statistics; counted under the cache lock only.
  static void count_one(std::atomic<uint64_t>* counter) {
    counter->store(counter->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // What every hit reads, and hardly any thread writes: two lines.
  alignas(128) const uintptr_t page_mask_;                      // the registrar's granularity - 1
  const pinrail_rcache_shortcut_t* rcache_shortcut_ = nullptr;  // of rcache_; NULL: it leaves that out
  const pinrail_start_table_t* start_table_ = nullptr;          // of rcache_; NULL: it has none
  Cache* const cache_;
  bool lends_start_table_ = false;   // the C face searches it before it calls the pool
  std::atomic<bool> gc_due_{false};  // gc_list_ exceeds its limit: the next call of any kind drains
  pinrail_rcache_t rcache_{};        // the functions that a hit needs are in this line and in the next one

  // Constant once the pool was made.
  alignas(128) Component* const component_;
  const pinrail_host_t* const host_;
  const pinrail_mpool_config_t config_;
  const Settings settings_;
  const pinrail_registrar_t limits_of_registrar_;  // max_length, tail_size, thread_mode
  const pinrail_registrar_t* const knows_gpu_;
  std::unique_ptr<Gpu> gpu_;  // of a pool of host memory that looks for GPU memory
  void* subscription_ = nullptr;

  HitCounts hits_;
  PendingCalls pending_;
  Unindexed unindexed_;
  GcList gc_list_;
  Registered registered_;
  EvictionList eviction_list_;
  // What misses and events count, in one line.
  alignas(64) InFlight in_flight_;
  std::atomic<uint64_t> misses_{0};         // counted under the cache lock
  std::atomic<uint64_t> invalidations_{0};  // counted under the index lock
  alignas(64) Deregistrar deregistrar_;
  Gc gc_;
  bool closing_ GUARDED_BY(cache_->mutex) = false;  // other pools of the cache leave this one alone

  std::atomic<bool> said_bytes_{false}, said_count_{false};  // that something can never fit
  std::atomic<uint64_t> races_{0}, retries_{0}, uncovered_{0};
};

// Calls is_enough(reg) for what seems idle, dead or not, until it returns true; whether it did. What is known to be
// idle comes first.
template <typename IsEnough>
bool Pool::visit_idle_locked(IsEnough&& is_enough) const {
  assert_cache_held();
  return eviction_list_.visit_ready_locked(is_enough) || registered_.visit_idle_locked(is_enough);
}

}  // namespace pinrail::grdma

#endif
