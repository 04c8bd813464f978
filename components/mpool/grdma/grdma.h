// SPDX-License-Identifier: BSD-3-Clause
// grdma.h - one pool of registrations of host memory, and what its component keeps.
//
// Owns     its index, its LRU list, its gc list, every registration of it.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool, hooks
//          apart: destroy() waits for those in flight.
// Hook     invalidate_range_hook() and what ends in _hook.
//
// grdma/G1  A registration is, by its state word: pending, indexed, or dead; uncached ones are born dead. Those that
//     stay when nobody holds them are counted per thread (references.h), the others in their state words.
// grdma/G2  Every registration that the device knows is linked into all_ and counted in the cache's budget, but for a
//     victim whose place was taken: to_release_ counts that one.
// grdma/G3  On the LRU list stand only registrations that are counted per thread, pending, held or not; those that were
//     claimed and found idle wait in ready_ instead, oldest first.
// grdma/G4  "Dead and unreferenced" is seen by one: counted in the word by the last drop, per thread by who claims it
//     (evictor) or by who takes it off the gc list and sums it (gc). What that finds held goes into limbo_ and is said
//     to be (references/C5), and then its last drop gives it back. What only seemed held, for a find counted it
//     and then saw it dead, is looked at again once thread->rollbacks has risen.
// grdma/G5  No lock is held across a call of the registrar.
// grdma/G6  An event reaches every registration that may still be held, also those that are not in the index: then the
//     registrar is told that the memory is gone (R12). What was never in the index and is counted in its state word, or
//     was displaced and is, stands on uncached_. What is counted per thread and was displaced, or refused by the index,
//     stands on displaced_ until it was summed, and on limbo_ if that found it held.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_H

#include <pinrail/component.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <new>

#include "base/core/guarded.h"
#include "base/hit/hit_counts.h"
#include "base/hit/recent.h"
#include "base/lru/lru_list.h"
#include "base/registration/registration_arena.h"
#include "components/mpool/grdma/grdma_cache.h"
#include "framework/mpool/caches.h"
#include "framework/mpool/say.h"

namespace pinrail::grdma {

// What a pool keeps of a registration.
struct Area {
  pinrail_registration_t* gc_next;   // while on the gc list or displaced_; later the library's (settle_dead)
  pinrail_registration_t* previous;  // in all_ or limbo_, guarded by the cache lock
  pinrail_registration_t* next;
  Pool* owner;
  uint32_t lru_place;  // guarded by the cache lock
  uint8_t reason;      // pinrail_reason_t; relaxed atomic
  bool is_ready;       // stands in ready_, guarded by the cache lock
  bool is_uncached;    // it is an UncachedArea, linked; of who has the registration
};
// Of one that is counted in its word and not in the index (any more): so that an event reaches it.
struct UncachedArea : Area {
  pinrail_registration_t* previous_uncached;  // guarded by the pending lock
  pinrail_registration_t* next_uncached;
};
static_assert(sizeof(UncachedArea) <= arena::area_bytes(PINRAIL_COUNTING_SHARED), "it fits");
static_assert(sizeof(Area) <= arena::area_bytes(PINRAIL_COUNTING_THREADS), "it fits");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }

inline UncachedArea& uncached_area_of(pinrail_registration_t* reg) {
  return *static_cast<UncachedArea*>(arena::area_of(reg));
}

// Soon both of its lines are changed: together, they are waited for but once.
inline void fetch(const pinrail_registration_t* reg) {
  __builtin_prefetch(reg, 1);
  __builtin_prefetch(arena::area_of(reg), 1);
}

struct LruPlaceOf {
  uint32_t& operator()(pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
  uint32_t operator()(const pinrail_registration_t* reg) const { return area_of(reg).lru_place; }
};

// Registrations of a pool, linked through their areas, and places in them that are kept while the lock is not. All
// under the cache lock.
struct List {
  enum Walk : uint8_t { counting, looking };
  pinrail_registration_t* first = nullptr;
  pinrail_registration_t* places[2] = {};  // by Walk

  void link(pinrail_registration_t* reg) {
    area_of(reg).previous = nullptr;
    area_of(reg).next = first;
    if (first != nullptr) area_of(first).previous = reg;
    first = reg;
  }
  void unlink(pinrail_registration_t* reg) {
    const Area& area = area_of(reg);
    if (area.next != nullptr) area_of(area.next).previous = area.previous;
    (area.previous != nullptr ? area_of(area.previous).next : first) = area.next;
    for (pinrail_registration_t*& place : places) {
      if (place == reg) place = area.next;
    }
  }
  // From the place on, at most so many, and moves it behind them.
  size_t next_batch(Walk walk, pinrail_registration_t** regs_out, size_t most) {
    pinrail_registration_t*& place = places[walk];
    size_t count = 0;
    for (; place != nullptr && count < most; place = area_of(place).next) regs_out[count++] = place;
    return count;
  }
};

// One opened component.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  mpool::Caches<Cache> caches;
};

// What the parameters and the creator's options came to.
struct Settings {
  bool leave_pinned = false;
  bool empty_cache = false;
  bool print_stats = false;
  uint64_t gc_limit = 0;
  bool gc_thread = false;
  bool gc_thread_insisted = false;  // the pool is not made without it
  size_t max_reg_size = 0;
  mpool::WantedLimits limits;
  std::string rcache_name;
  std::string gpu_registrar;      // empty: GPU memory is not looked for
  bool gpu_leave_pinned = false;  // what was asked for: no monitor is needed
};
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings_out);

// What a caller asked for, rounded out to the registrar's granularity.
struct Request {
  Span span;
  uint64_t access_and_flags;  // as the C table has it
  uint64_t buffer_id = 0;     // of GPU memory

  uint32_t access() const { return static_cast<uint32_t>(access_and_flags); }
  uint32_t rights() const { return access() & PINRAIL_RIGHTS_MASK; }
  uint32_t traits() const { return access() & PINRAIL_TRAITS_MASK; }
  uint32_t flags() const { return static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT); }
  bool has(uint32_t flag) const { return (flags() & flag) != 0; }
};

// A register call under way: what invalidate_range_hook marks, and what equal calls wait for (R5, R13).
struct Pending {
  Span span;
  uint32_t rights = 0;
  uint32_t traits = 0;
  uint64_t ticket = 0;  // 0: nobody waits for it
  bool raced = false;
  bool is_counted = false;   // as a miss
  bool is_uncached = false;  // its registration will not be in the index
  Pending* next = nullptr;
};

// What a miss found when it looked once more, for sure.
enum class Entered : uint8_t {
  found,         // the index has it by now
  ready,         // it is this thread's to register, and the index has set memory aside for it
  needs_memory,  // as above, but the index must get memory first
};

// What became of a registration that the device knows.
enum class Published : uint8_t {
  raced,    // an event overtook it: dead, nobody's
  indexed,  // in the index, with its maker's reference
  alone     // another one covers it by now: dead, but its maker holds it
};

// Whether room may be made at the device, at the cost of what is idle.
enum class Room : uint8_t { as_it_is, made };

// Whether the device still has what it was told.
enum class Device : uint8_t { knows, forgot };

// Whether somebody has looked into the table of starts before, in vain.
enum class StartTable : uint8_t { seen, unseen };

class Gpu;

class Pool {  // NOLINT(clang-analyzer-optin.performance.Padding): what hits read has a line of its own
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out);
  // knows_gpu: the pool is of GPU memory, and that makes dmabufs of it; NULL: of host memory.
  static Status create_one(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                           const pinrail_registrar_t* knows_gpu, Pool** pool_out);
  Status destroy(pinrail_thread_t* thread, uint32_t flags);

  // As the C table calls them: one function from the border to the index.
  static pinrail_status_t register_entry(void* pool, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                         uint64_t access_and_flags, pinrail_handle_t* handle_out);
  static pinrail_status_t deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle);
  pinrail_shortcut_t shortcut();
  void dropped_dead(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after);
  // It may have been the last reference to a dead one: somebody must sum.
  __attribute__((noinline)) void ask_gc(pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t after);
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

  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings);
  ~Pool();
  Status join_cache(const char* cache_name);
  Status connect();
  void leave_cache();
  void end_all(pinrail_thread_t* thread);
  void open_again();
  Status join_gc_thread();
  void leave_gc_thread();

  pinrail_mpool_stats_t happened() const;

  // grdma_register.cc
  bool lends_start_table() const;
  bool hit(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags, pinrail_handle_t* handle_out,
           StartTable starts = StartTable::unseen);
  __attribute__((noinline)) pinrail_status_t miss_entry(pinrail_thread_t* thread, uintptr_t base, uintptr_t end,
                                                        uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status miss(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  __attribute__((noinline)) pinrail_status_t gpu_entry(pinrail_thread_t* thread, uintptr_t addr, size_t length,
                                                       uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status register_known(pinrail_thread_t* thread, const Request& request, bool* is_hit_out,
                        pinrail_registration_t** reg_out);
  Status register_uncached(pinrail_thread_t* thread, const Request& request, Pending* own,
                           pinrail_registration_t** reg_out);
  Status register_own(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status register_indexed(pinrail_thread_t* thread, const Request& request, Pending* own,
                          pinrail_registration_t** reg_out);
  Status register_uncovered(pinrail_thread_t* thread, const Request& request, Pending* own,
                            pinrail_registration_t** reg_out);
  Status attempt(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out,
                 bool* raced_out);

  // grdma_pending.cc
  Entered enter(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_registration_t** reg_out);
  Published publish(const pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg);
  void leave(Pending* own);
  void leave_locked(Pending* own) REQUIRES(pending_mutex_);
  void wait_for(Pending* other) REQUIRES(pending_mutex_);
  Pending* covering_pending(const Pending& own) const REQUIRES(pending_mutex_);
  bool is_pending(uint64_t ticket) const REQUIRES(pending_mutex_);
  void unlink_pending(Pending* own) REQUIRES(pending_mutex_);
  void link_uncached(pinrail_registration_t* reg);
  void link_uncached_locked(pinrail_registration_t* reg) REQUIRES(pending_mutex_);
  void unlink_uncached(pinrail_registration_t* reg);

  // grdma_device.cc
  uint64_t& buffer_id_of(pinrail_registration_t* reg) const;
  size_t tail_of_registrar() const { return (limits_of_registrar_.tail_size + 7) & ~size_t{7}; }
  Status register_on_device(pinrail_thread_t* thread, const Request& request, Pending* own, pinrail_counting_t counting,
                            pinrail_registration_t** reg_out);
  Status admit(pinrail_thread_t* thread, Pending* own, pinrail_registration_t* reg);
  Status tell_admitted(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status register_making_room(pinrail_thread_t* thread, pinrail_registration_t* reg, Room room);
  Status tell_gpu_memory(pinrail_thread_t* thread, pinrail_register_request_t* request, pinrail_registration_t* reg,
                         Room room);
  Status try_register_mem(pinrail_thread_t* thread, const pinrail_register_request_t& request,
                          pinrail_registration_t* reg, Room room);
  bool make_room(pinrail_thread_t* thread);
  Status nothing_idle(const pinrail_registration_t* own);
  void say_limit(const pinrail_registration_t* reg);
  void give_back(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason);
  void tell_device_off(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                       Device device = Device::knows);

  // grdma_deregister.cc
  Pool* owner_of(const pinrail_registration_t* reg);
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle);
  void drop_unused(pinrail_thread_t* thread, pinrail_handle_t handle);
  __attribute__((noinline)) Status drop_elsewhere(pinrail_thread_t* thread, pinrail_handle_t handle);
  Status drop_in_word(pinrail_thread_t* thread, pinrail_handle_t handle);
  Status drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle);

  // grdma_evict.cc
  bool evict_one(pinrail_thread_t* thread);
  static void leave_device(pinrail_thread_t* thread, const Victim& victim);
  static void end(pinrail_registration_t* reg, Pool* owner);
  static void dismiss_and_end(pinrail_registration_t* reg, Pool* owner);
  void forget_admission(pinrail_registration_t* reg, const Status& status, const Victim& victim);
  void empty(pinrail_thread_t* thread);
  bool confirm_held(pinrail_registration_t* reg, uint64_t generation);
  // The rest under the cache lock.
  bool oldest_epoch(uint64_t now, uint64_t* epoch_out) const;
  size_t take_oldest(uint64_t now, pinrail_registration_t** regs_out, size_t room);
  bool claim_oldest(uint64_t now);
  pinrail_registration_t* next_ready();
  void unlink(pinrail_registration_t* reg);
  void unlist(pinrail_registration_t* reg);
  template <typename IsEnough>
  bool add_idle(IsEnough&& is_enough) const;

  // grdma_gc.cc
  // What one miss gives back at most: an event may kill ten thousands, and one call shall not wait for all of them.
  static constexpr size_t kSome = 256;
  // So many are summed with one barrier.
  static constexpr size_t kBatch = 64;
  size_t drain_own(pinrail_thread_t* thread, size_t most);
  size_t drain_once(pinrail_thread_t* thread, size_t most);
  size_t drain_displaced(pinrail_thread_t* thread, size_t most);
  size_t sum_displaced(const pinrail_thread_t* thread, size_t most, pinrail_registration_t** idle_out,
                       size_t* idle_count_out);
  size_t first_displaced(pinrail_registration_t** regs_out, size_t most);
  void unlink_displaced(pinrail_registration_t* const* regs, const int64_t* references, size_t count);
  void forget_displaced();
  void watch_no_displaced() REQUIRES(pending_mutex_);
  void note_limbo(uint64_t rollbacks);
  void count_off_gc_list(uint64_t bytes, uint64_t count);
  size_t sum_some(pinrail_thread_t* thread, pinrail_registration_t** list, size_t most);
  void put_rest_back(pinrail_registration_t* rest);
  void put_batch_back(pinrail_registration_t** regs, size_t count);
  size_t give_back_idle(pinrail_thread_t* thread, pinrail_registration_t** regs, const int64_t* references,
                        size_t count, uint64_t rollbacks);
  bool put_in_limbo(pinrail_registration_t* reg, uint64_t rollbacks);
  size_t look_at_limbo(pinrail_thread_t* thread);
  void give_back_dropped(pinrail_thread_t* thread, pinrail_registration_t* reg);
  size_t drain_all(pinrail_thread_t* thread);
  static int drain_entry(void* pool, pinrail_thread_t* thread);
  void wake_gc_hook(pinrail_gc_when_t when);
  void drain_if_due(pinrail_thread_t* thread);
  void drain_if_many(pinrail_thread_t* thread);

  // grdma_invalidate_hook.cc
  bool kill_hook(pinrail_registration_t* reg, pinrail_reason_t reason);
  void die_hook(pinrail_registration_t* const* regs, size_t count, pinrail_reason_t reason);
  void push_dead_hook(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes, uint64_t count);
  void push_displaced_hook(pinrail_registration_t* reg) REQUIRES(pending_mutex_);
  void count_dead_hook(uint64_t bytes, uint64_t count, bool is_first);
  void mark_unindexed_hook(const Span& span);
  void displace_hook(pinrail_registration_t* const* regs, size_t count) REQUIRES(pending_mutex_);
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void abandoned_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void invalidated_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void report_hook(void* pool, uintptr_t base, size_t length);

  // grdma_destroy.cc
  static constexpr size_t kQuietBatch = 256;  // so many are summed in one hold of the lock
  size_t count_referenced(std::string* list_out);
  void count_referenced_in(List* list, mpool::Referenced* referenced);
  // In ready_, and not taken since: a hit breaks the claim.
  static bool is_ready(const pinrail_registration_t* reg) {
    return area_of(reg).is_ready && (state::load(reg) & state::kEvictClaim) != 0;
  }
  bool is_anything_held(const pinrail_registration_t* own) const;
  bool close_if_idle(bool force);
  void settle(pinrail_thread_t* thread, uint64_t rounds);
  void release_all(pinrail_thread_t* thread, Device device);
  size_t next_to_release(pinrail_registration_t** regs_out);
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, int64_t references, Device device);

  // grdma_ft.cc
  Status restart(pinrail_thread_t* thread);
  void release_idle(pinrail_thread_t* thread);
  void abandon_all(pinrail_thread_t* thread);

  // Asked once for each registration. E5: a monitor that went blind has killed what is cached, and nothing new is kept.
  bool is_kept(uint32_t flags) const {
    return settings_.leave_pinned && (flags & PINRAIL_FLAG_PERSISTENT) == 0 &&
           (knows_gpu_ != nullptr || host_->monitor_works(host_, nullptr) != 0) && host_->counts_per_thread(host_) != 0;
  }
  // Asked before the device is told, while the request is pending: an event between the answer and the index is a race.
  // GPU memory is covered by its buffer id.
  bool is_covered(const Span& span) const {
    return knows_gpu_ != nullptr || host_->monitor_covers(host_, span.base, span.length()) != 0;
  }
  // relaxed: only whether it is worth the way; who pushed and needs the answer comes by itself.
  bool has_dead(const pinrail_thread_t* thread) const {
    return gc_list_.load(std::memory_order_relaxed) != nullptr ||
           displaced_.load(std::memory_order_relaxed) != nullptr || is_overdue(thread);
  }
  // What was not new when it was last looked at, or may have been misjudged then. relaxed: as above.
  bool is_overdue(const pinrail_thread_t* thread) const {
    return gc_rest_.load(std::memory_order_relaxed) != nullptr || is_misjudged(thread);
  }
  bool is_misjudged(const pinrail_thread_t* thread) const {
    const uint64_t rollbacks = limbo_undone_.load(std::memory_order_relaxed);
    return rollbacks != kNoLimbo && rollbacks != __atomic_load_n(thread->rollbacks, __ATOMIC_RELAXED);
  }
  // relaxed: figures; counted under the cache lock only.
  void count_miss() { misses_.store(misses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void count_eviction() { evictions_.store(evictions_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  bool is_caller_only() const { return limits_of_registrar_.thread_mode == PINRAIL_THREAD_CALLER; }

  // What every hit reads, and hardly anybody writes: one line.
  alignas(128) uintptr_t page_mask_ = 0;  // the registrar's granularity - 1
  pinrail_rcache_t rcache_{};
  const pinrail_start_table_t* start_table_ = nullptr;  // of rcache_; NULL: it has none
  Cache* cache_ = nullptr;
  std::atomic<bool> gc_due_{false};  // gc_bytes_ passed gc_limit: the next call of any kind drains

  alignas(128) Component* const component_;
  const pinrail_host_t* const host_;
  const pinrail_mpool_config_t config_;
  const Settings settings_;
  pinrail_registrar_t limits_of_registrar_{};  // max_length, tail_size, thread_mode
  const pinrail_registrar_t* knows_gpu_ = nullptr;
  std::unique_ptr<Gpu> gpu_;  // of a pool of host memory that looks for GPU memory
  void* subscription_ = nullptr;
  void* gc_member_ = nullptr;  // NULL: nobody but callers drains. Set before hooks come in

  // Guarded by cache_->mutex.
  LruList<LruPlaceOf> lru_list_;
  static constexpr size_t kEvictClaim = 64;
  pinrail_registration_t* ready_[kEvictClaim] = {};  // claimed and idle: [ready_next_, ready_end_), oldest first
  size_t ready_next_ = 0, ready_end_ = 0;
  List all_;              // but for those in limbo_
  List limbo_;            // dead, and held when they were summed; changed under the pending lock, too
  size_t all_count_ = 0;  // in both
  bool closing_ = false;

  // Being given back: claimed, or summed to 0, and not yet dismissed.
  std::atomic<uint64_t> to_release_{0};
  // Threads that took the gc list and are not through with it.
  std::atomic<uint64_t> draining_{0};
  // Calls into other pools of the cache that drain this one's gc list.
  std::atomic<uint64_t> visitors_{0};

  mutable HookMutex pending_mutex_{LockRank::pending, HookLocks::of(host_)};
  Condition pending_done_;
  // Changed under the lock, but that who finds nobody enters without. seq_cst, but for who leaves: a hook that finds
  // none without the lock came before whoever is entered next looks at the mapping and at the index, or behind the
  // insert of who was here.
  std::atomic<Pending*> pending_{nullptr};
  std::atomic<uint32_t> told_{0};  // by callers, of memory that goes: a barrier, nobody reads it
  // Held, counted in their words, and not in the index: grdma/G6. Changed under the lock; hooks that find none without
  // it came before who is linked next calls the device, or found that one in the index.
  std::atomic<pinrail_registration_t*> uncached_{nullptr};
  // Displaced, and not summed since, linked by gc_next: grdma/G6. Changed under the lock, taken off under the cache
  // lock besides.
  std::atomic<pinrail_registration_t*> displaced_{nullptr};
  // Whether something displaced may be on displaced_ or limbo_, and where it may lie. Changed under the lock; set
  // before the index loses what is displaced, and hooks look after they have searched that.
  std::atomic<bool> has_displaced_{false};
  Span displaced_span_ GUARDED_BY(pending_mutex_);
  uint64_t tickets_ GUARDED_BY(pending_mutex_) = 0;
  size_t waiters_ GUARDED_BY(pending_mutex_) = 0;  // for another's registration

  std::atomic<pinrail_registration_t*> gc_list_{nullptr};  // pushed by hooks, taken whole by API calls
  std::atomic<pinrail_registration_t*> gc_rest_{nullptr};  // taken from gc_list_ and too much; under the cache lock
  std::atomic<uint64_t> gc_bytes_{0};
  std::atomic<uint64_t> gc_count_{0};  // on gc_list_ and gc_rest_, roughly
  static constexpr uint64_t kNoLimbo = UINT64_MAX;
  std::atomic<uint64_t> limbo_undone_{
      kNoLimbo};  // thread->rollbacks before the oldest sum of what is in limbo_; under the cache lock

  std::atomic<bool> said_bytes_{false}, said_count_{false};  // that something can never fit
  std::atomic<uint64_t> misses_{0}, evictions_{0}, invalidations_{0}, races_{0}, retries_{0}, uncovered_{0};
  HitCounts hits_;
};

// Calls is_enough(reg) for what seems idle, dead or not, until it says true; whether it did. Under the cache lock. What
// is known to be idle comes first; the rest is summed as it stands, so that hits are not disturbed.
template <typename IsEnough>
bool Pool::add_idle(IsEnough&& is_enough) const {
  for (size_t i = ready_next_; i != ready_end_; ++i) {
    if (is_ready(ready_[i]) && is_enough(ready_[i])) return true;
  }
  for (pinrail_registration_t* reg = all_.first; reg != nullptr;) {
    pinrail_registration_t* batch[kBatch];
    int64_t references[kBatch];
    size_t count = 0;
    for (; reg != nullptr && count < kBatch; reg = area_of(reg).next) {
      const uint64_t word = state::load(reg);
      const bool pending = (word & (state::kIndexed | state::kDead)) == 0;
      if (!pending && !is_ready(reg)) batch[count++] = reg;
    }
    if (count == 0) break;  // the list is at its end
    host_->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    if (references[0] == PINRAIL_REFERENCES_UNKNOWN) return false;
    for (size_t i = 0; i < count; ++i) {
      if (references[i] <= 0 && is_enough(batch[i])) return true;
    }
  }
  return false;
}

}  // namespace pinrail::grdma

#endif
