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
//
// Nothing displaces or evicts a persistent registration, because it is exempt in the index and always held. Its last
// drop ends it (engine/P1). A persistent request hits no other one.
#ifndef PINRAIL_COMPONENTS_MPOOL_ODP_H
#define PINRAIL_COMPONENTS_MPOOL_ODP_H

#include "framework/mpool/indexed_pool.h"

namespace pinrail::odp {

using mpool::Component;
using mpool::handle_of;

struct Settings : mpool::PoolSettings {
  size_t tile_size = 0;  // a power of two
};

class Pool : public mpool::IndexedPool<Pool, Settings> {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out);

  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  void counters(pinrail_mpool_stats_t* stats_out) const;

 private:
  friend class mpool::Engine<Pool, Settings>;
  using Base = mpool::IndexedPool<Pool, Settings>;
  // What is registered: the range, its rights, traits and flags (PINRAIL_FLAG_PERSISTENT).
  struct Wanted {
    Span span;
    uint32_t rights, traits, flags;
  };

  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
      : Base(component, config, settings, config.limits->granularity, PINRAIL_TRAIT_ON_DEMAND) {}

  bool has_all_memory() const { return limits_of_registrar_.on_demand == PINRAIL_ON_DEMAND_IMPLICIT; }
  bool hit(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_registration_t** reg_out);
  Span tiles_of(const Span& span) const;
  Status miss(pinrail_thread_t* thread, const Span& span, uint32_t access, uint32_t flags,
              pinrail_registration_t** reg_out);
  Status register_announced(pinrail_thread_t* thread, const Span& span, pinrail_announcement_t* announcement,
                            pinrail_registration_t** reg_out, bool* is_published_out);
  Status register_own(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out);
  Status make(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out);
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);

  // The device's state is lost.
  static Status restart(pinrail_thread_t*) { return PINRAIL_ERR_NOT_SUPPORTED; }
  // The device faults pages in.
  static uint64_t pinned_bytes() { return 0; }
};

}  // namespace pinrail::odp

#endif
