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
// odp/O3  The evictor retires an idle registration under the cache's lock, and then owns it. destroy() waits for
//     evictors of other pools.
// odp/O4  Nothing displaces or evicts a persistent registration, because it is exempt in the index and always held. Its
//     last drop ends it (list_pool/P1). A persistent request hits no other one.
#ifndef PINRAIL_COMPONENTS_MPOOL_ODP_H
#define PINRAIL_COMPONENTS_MPOOL_ODP_H

#include <atomic>

#include "components/common/cache_list/list_pool.h"
#include "components/mpool/odp/odp_cache.h"

namespace pinrail::odp {

using Common = cache_list::Pool<Cache>;
using Component = cache_list::Component<Cache>;

struct Settings : cache_list::Settings {
  size_t tile_size = 0;  // a power of two
};

class Pool : public Common {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Common** pool_out);
  Status destroy(pinrail_thread_t* thread, uint32_t flags);

  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  Status evict(pinrail_thread_t* thread);
  Status progress(pinrail_thread_t* thread);
  Status ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state);
  size_t referenced() const { return count_referenced(); }

 private:
  // What is registered: the range, its rights, traits and flags (PINRAIL_FLAG_PERSISTENT).
  struct Wanted {
    Span span;
    uint32_t rights, traits, flags;
  };

  // odp_create.cc
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings);
  void release_all(pinrail_thread_t* thread);
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg);

  // odp_register.cc
  bool hit(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out);
  Span tiles_of(const Span& span) const;
  Status miss(pinrail_thread_t* thread, const Span& span, uint32_t access, uint32_t flags,
              pinrail_registration_t** reg_out);
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
  void give_back(pinrail_thread_t* thread, pinrail_registration_t* reg) override;
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);

  const size_t tile_size_;  // a power of two

  Mutex misses_mutex_{LockRank::pending};
  Condition miss_ended_;  // an announcement has ended

  std::atomic<bool> said_limit_{false};
};

}  // namespace pinrail::odp

#endif
