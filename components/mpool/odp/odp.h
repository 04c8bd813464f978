// SPDX-License-Identifier: BSD-3-Clause
// odp.h - one pool of registrations that page on demand: they pin nothing and follow the mappings of their range.
//
// Owns     its index and all its registrations.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool.
// Hook     displaced_hook(), invalidate_range_hook().
//
// odp/O1  A registration covers whole tiles of the address space, mapped or not, or all of it where the device can. A
//     request that no sequence of tiles can serve gets a registration of its own range.
// odp/O2  Memory events end no registration: the device faults in what is mapped when it needs it. So the pool needs no
//     monitor, and E1 holds because a registration shows the device what the process has mapped.
// odp/O3  References are counted in the state word. The last drop of a dead registration gives it back; a dead one
//     without references is given back by who killed it, displaced_hook() by the list of the displaced.
// odp/O4  The evictor marks an idle registration dead under the cache's lock, so one thread gives it back. destroy()
//     waits for evictors of other pools.
#ifndef PINRAIL_COMPONENTS_MPOOL_ODP_H
#define PINRAIL_COMPONENTS_MPOOL_ODP_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/core/guarded.h"
#include "base/core/on_unwind.h"
#include "base/hit/hit_counts.h"
#include "components/mpool/odp/odp_cache.h"
#include "framework/mpool/caches.h"

namespace pinrail::odp {

// One opened component.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  mpool::Caches<Cache> caches;
};

struct Settings {
  mpool::WantedLimits limits;
  size_t max_reg_size = 0;
  size_t tile_size = 0;  // a power of two
  bool print_stats = false;
  std::string rcache_name;
};

class Pool {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out);
  Status destroy(pinrail_thread_t* thread, uint32_t flags);

  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  static pinrail_status_t deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle);
  Status evict(pinrail_thread_t* thread);
  Status progress(pinrail_thread_t* thread);
  Status ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state);
  using QueryVisit = void (*)(void* arg, uintptr_t base, size_t length);
  Status query(pinrail_thread_t* thread, const Span& span, uint32_t access, QueryVisit visit, void* arg);
  void stats(pinrail_mpool_stats_t* stats_out) const;
  void counters(pinrail_mpool_stats_t* stats_out) const;
  size_t referenced() { return cache_->count_referenced(this, nullptr); }
  size_t max_reg_size() const { return settings_.max_reg_size; }
  const char* check() const;

 private:
  // What is registered: the range, its rights and traits.
  struct Wanted {
    Span span;
    uint32_t rights, traits;
  };

  // odp_create.cc
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, Cache* cache);
  ~Pool() = default;
  void release_all(pinrail_thread_t* thread);
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg);

  // odp_register.cc
  bool hit(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out);
  Span tiles_of(const Span& span) const;
  Status miss(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_registration_t** reg_out);
  Status register_announced(pinrail_thread_t* thread, const Span& span, pinrail_announcement_t* announcement,
                            pinrail_registration_t** reg_out, bool* is_published_out);
  pinrail_status_t announce(pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                            pinrail_registration_t** reg_out) EXCLUDES(misses_mutex_);
  void wake_waiting() EXCLUDES(misses_mutex_);
  Status register_own(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out);

  // odp_device.cc
  Status make(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out);
  Status register_admitted(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status admit(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status call_registrar(pinrail_thread_t* thread, pinrail_registration_t* reg);
  uint64_t charge_of(const Span& span) const;
  void report_limit(uint64_t bytes);
  bool evict_one(pinrail_thread_t* thread, uint64_t bytes);
  void give_back(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void give_back_displaced(pinrail_thread_t* thread);
  Status drop(pinrail_thread_t* thread, pinrail_handle_t handle);
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);

  pinrail_mpool_stats_t happened() const;

  const uintptr_t page_mask_;
  Cache* const cache_;
  Component* const component_;
  const pinrail_host_t* const host_;
  const uint64_t* const epoch_;  // the process's clock of uses
  const pinrail_mpool_config_t config_;
  const pinrail_registrar_t limits_of_registrar_;
  const Settings settings_;
  pinrail_rcache_t rcache_{};

  Mutex misses_mutex_{LockRank::pending};
  Condition miss_ended_;  // an announcement has ended
  cache_list::DeadList displaced_;

  std::atomic<bool> said_limit_{false};
  std::atomic<uint64_t> misses_{0}, evictions_{0}, retries_{0};
  HitCounts hits_;
};

}  // namespace pinrail::odp

#endif
