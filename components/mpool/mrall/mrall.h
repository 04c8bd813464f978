// SPDX-License-Identifier: BSD-3-Clause
// mrall.h - one pool in which everything that the process has mapped is registered.
//
// Owns     its index, all its registrations, and the list of what it left out.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool, hooks and
//          the gc thread apart: destroy() waits for those.
// Hook     what ends in _hook, alone.
//
// mrall/A1  Only the maker (the process's gc thread, in work()) calls register_mem of the registrar: find and register
//     calls wait for it.
// mrall/A2  An event takes what it touches out of the index and then queues the ranges of all that it took out, under
//     one lock. The maker inserts under the same lock, and only what no event has touched since the round began, so no
//     registration that is in the index is older than its mapping (E1, E2).
//
// What is dead is given back with the reason INVALIDATED: its memory may be another's by now (R12). If it is not, a
// registration that replaced it covers the same pages.
#ifndef PINRAIL_COMPONENTS_MPOOL_MRALL_H
#define PINRAIL_COMPONENTS_MPOOL_MRALL_H

#include <pinrail/listing.h>

#include <vector>

#include "components/mpool/mrall/mrall_left_out.h"
#include "components/mpool/mrall/mrall_maps.h"
#include "components/mpool/mrall/mrall_work.h"
#include "framework/mpool/indexed_pool.h"

namespace pinrail::mrall {

using mpool::Component;
using mpool::handle_of;

struct Settings : mpool::PoolSettings {
  size_t largest_piece = 0;
  uint32_t rescan_ms = 0;
};

class Pool : public mpool::IndexedPool<Pool, Settings> {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out);
  ~Pool();
  Status destroy(pinrail_thread_t* thread, uint32_t flags);

  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  void invalidate_range_hook(const Span& span);
  // Nothing is evicted on request: all that can be pinned is.
  static Status evict(pinrail_thread_t*) { return PINRAIL_ERR_NOT_FOUND; }
  // Returns when all that was mapped before the call is registered or left out.
  Status progress(pinrail_thread_t* thread);
  static Status ft_event(pinrail_thread_t*, pinrail_ft_state_t) { return PINRAIL_ERR_NOT_SUPPORTED; }
  size_t left_out(pinrail_left_out_t* entries_out, size_t room) const { return left_out_.list(entries_out, room); }
  size_t referenced();

 private:
  friend class mpool::Engine<Pool, Settings>;
  using Base = mpool::IndexedPool<Pool, Settings>;

  // mrall_component.cc
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings);
  Status connect();
  void resume();
  pinrail_reason_t leave_index(pinrail_registration_t* reg, pinrail_reason_t reason);
  uint64_t dead_bytes() const { return dead_bytes_.load(std::memory_order_relaxed); }  // relaxed: a statistic

  // mrall_register.cc
  Status find_or_wait(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out);
  Status demand(Demand* demand);
  Status catch_up();

  // mrall_make.cc
  static int work_entry(void* pool, pinrail_thread_t* thread);
  void work(pinrail_thread_t* thread);
  Status work_once(pinrail_thread_t* thread, bool is_due, Ranges* touched, Demand* demands);
  bool is_rescan_due();
  Status make_round(pinrail_thread_t* thread, const Ranges& touched, Demand* demands, bool is_rescan);
  void update(pinrail_thread_t* thread, const Span& span);
  void erase_held(pinrail_thread_t* thread, const Span& span);
  void judge_held(pinrail_thread_t* thread, const Span& span);
  void register_line(pinrail_thread_t* thread, const Span& span, uint32_t rights);
  void register_gap(pinrail_thread_t* thread, const Span& span, uint32_t rights);
  Status answer(pinrail_thread_t* thread, const Demand& demand);
  bool can_make_room(pinrail_thread_t* thread, const Span& span, Status status, const LeftOut::Why& why);
  void give_back_idle(pinrail_thread_t* thread, const Span& span, Span* around_out);
  Status make_instead(pinrail_thread_t* thread, const Span& span, uint32_t rights, LeftOut::Why* why_out);
  Status make(pinrail_thread_t* thread, const Span& span, uint32_t rights, LeftOut::Why* why_out);
  Status make_admitted(pinrail_thread_t* thread, pinrail_registration_t* reg, LeftOut::Why* why_out);
  Status call_registrar(pinrail_thread_t* thread, pinrail_registration_t* reg);
  bool register_without_atomics(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status register_as_asked(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status ask_on_own_page(pinrail_thread_t* thread, uint32_t rights);
  Status publish(pinrail_thread_t* thread, pinrail_registration_t* reg);
  Status publish_announced(pinrail_thread_t* thread, pinrail_announcement_t* announcement, pinrail_registration_t* reg);
  void kill_one(pinrail_registration_t* reg);

  static void report_hook(void* pool, uintptr_t base, size_t length);
  static void invalidated_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count);
  void kill_hook(pinrail_registration_t* reg);

  const uint64_t
      memory_bytes_;  // of the machine; a mapping that is longer is registered only as far as it is asked for
  void* subscription_ = nullptr;
  std::atomic<uint64_t> dead_bytes_{0};  // referenced or not

  Work work_;
  LeftOut left_out_;

  // The maker's alone.
  Maps maps_;
  Held held_;
  std::vector<Span> covered_;
  bool is_rescan_ = false;                      // nothing says that the range of this round has changed
  uint32_t most_rights_ = PINRAIL_RIGHTS_MASK;  // what the device grants at most
  bool has_asked_for_atomics_ = false;
  int64_t next_rescan_ms_ = 0;
};

}  // namespace pinrail::mrall

#endif
