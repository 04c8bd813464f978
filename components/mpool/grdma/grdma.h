// SPDX-License-Identifier: BSD-3-Clause
// grdma.h - one pool of registrations: the ways in and out. What they work on are the objects in the other headers of
// this folder. The pool is of host memory; grdma_gpu.h has what is different of a GPU's.
//
// Owns     its index, the objects below, every registration of it.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool, hooks
//          apart: destroy() waits for those in flight.
// Hook     what ends in _hook, alone.
//
// grdma/G1  A registration is pending, indexed or dead, as its state word says; the word decides who ends it
//     (registration/S2). The owner takes it out of the index, then reads the reason, then calls the registrar, then
//     frees it (leave_index(), engine/P1).
// grdma/G6  An event reaches every registration that may be held: the index overtakes the calls under way and searches
//     itself in one step, then what is held outside of the index is marked. What the index loses or refuses is linked
//     there before, so no registration slips through between the two steps.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <string>

#include "components/mpool/grdma/grdma_extent.h"
#include "components/mpool/grdma/grdma_outside.h"
#include "components/mpool/grdma/grdma_reasons.h"
#include "framework/mpool/indexed_pool.h"

namespace pinrail::grdma {

using mpool::Component;
using mpool::Device;
using mpool::handle_of;
using mpool::Room;

// What the parameters and the creator's options of one pool come to: constant once it was read.
struct Settings : mpool::PoolSettings {
  bool gc_thread = false;
  bool gc_thread_insisted = false;  // a pool that gets no thread is not made
  size_t extent = 0;                // bytes of the window that a miss registers; 0: what is asked for
  bool all_rights = false;          // a miss asks for all, not only for those of the request
  std::string gpu_registrar;        // empty: all memory is taken for host memory
  bool gpu_leave_pinned = false;    // what was asked for: no monitor is needed
};
// The strongest of: an override file's value, the creator's option, the parameter.
// NOT_SUPPORTED: leave_pinned was asked for, and no monitor works (E5).
Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings_out);

// The options of a request, for the start of its rounded range.
struct Extra {
  int fd;  // -1: no dmabuf
  uint64_t fd_offset;
  uint64_t iova;  // 0: the address itself
  const void* argument;
  uint64_t user_value;
  uint64_t inode;  // of the dmabuf, which its number does not name for long
};

// What a caller asked for.
struct Request {
  Span span;                  // rounded out to the registrar's granularity
  uint64_t access_and_flags;  // as in the C table
  uint64_t buffer_id = 0;     // of GPU memory
  const Extra* extra = nullptr;

  uint32_t access() const { return static_cast<uint32_t>(access_and_flags); }
  uint32_t rights() const { return access() & PINRAIL_RIGHTS_MASK; }
  uint32_t traits() const { return access() & PINRAIL_TRAITS_MASK; }
  uint32_t flags() const { return static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT); }
  bool has(uint32_t flag) const { return (flags() & flag) != 0; }
  // Whether what is cached may answer it.
  bool may_hit() const { return !has(PINRAIL_FLAG_CACHE_BYPASS) && !has(PINRAIL_FLAG_PERSISTENT) && extra == nullptr; }
};

// An event that is being searched for in the index.
struct Ending {
  class Pool* pool;
  Span span;
  uint32_t count = 0;  // registrations that it has ended
};

// What an insert has displaced and nothing holds: a chain of numbers (registration_arena.h), linked by `used`, which
// serves the evictor only while a registration is cached.
struct Displaced {
  class Pool* pool;
  uint32_t first = 0;
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): what events write has a line of its own
class Pool : public mpool::IndexedPool<Pool, Settings> {
 public:
  // In its cache, connected and in the gc thread.
  static Status create(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                       Pool** pool_out);
  virtual ~Pool();

  Status register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status register_with(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                       const pinrail_register_options_t& options, pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out);
  void invalidate_range_hook(const Span& span);
  void invalidate_reported_hook(const Span& span);
  void counters(pinrail_mpool_stats_t* stats_out) const;

 protected:
  friend class mpool::Engine<Pool, Settings>;
  friend class mpool::IndexedPool<Pool, Settings>;
  friend class Both;
  using Base = mpool::IndexedPool<Pool, Settings>;

  // own_tail: bytes that it keeps behind the registrar's tail.
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, size_t own_tail = 0);
  Status start(uint32_t kind);

  bool find_answer(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);

  // Asked before the device is called, while the request is pending: an event between the answer and the insert is a
  // race. E5: a monitor that went blind has killed what is cached, and covers nothing any more.
  virtual bool is_covered(const Span& span) const {
    return host_->monitor_covers(host_, span.base, span.length()) != 0;
  }
  // Calls the registrar. The request's kind and descriptor may be changed.
  virtual Status call_device(pinrail_thread_t* thread, const Request&, pinrail_register_request_t* wanted,
                             pinrail_registration_t* reg, Room room) {
    return call_registrar(thread, *wanted, reg, room);
  }
  size_t tail_of_registrar() const { return (limits_of_registrar_.tail_size + 7) & ~size_t{7}; }

 private:
  // A call that misses, from its announcement on. Others wait for it by the announcement (R5), which lasts while
  // is_announced is set.
  struct Miss {
    pinrail_announcement_t announcement;
    Span span;        // to be registered; more than the request's if is_wider
    uint32_t rights;  // the same (R4)
    bool is_wider = false;
    pinrail_miss_reason_t cause = PINRAIL_MISS_COLD;     // why no registration has answered
    pinrail_miss_reason_t reason = PINRAIL_MISS_BYPASS;  // the cause, or what came of the miss
    bool is_announced = false;
    mpool::Cache::Tries tries;
  };

  // grdma_create.cc
  Status connect(uint32_t kind);

  // grdma_register.cc
  void count_answer(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);

  // grdma_miss.cc
  Span extent_of(const Request& request);
  void set_span(const Request& request, const Span& span, Miss* miss);
  pinrail_miss_reason_t why_missed(const Request& request);
  void record_miss(pinrail_thread_t* thread, const Request& request, const Miss& miss, const Status& status);
  Status miss(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  pinrail_status_t announce(pinrail_thread_t* thread, const Request& request, Miss* miss,
                            pinrail_registration_t** reg_out);
  bool withdraw(Miss* miss);
  Status register_indexed(pinrail_thread_t* thread, const Request& request, Miss* miss,
                          pinrail_registration_t** reg_out);
  Status register_uncached(pinrail_thread_t* thread, const Request& request, Miss* miss,
                           pinrail_registration_t** reg_out);
  Status register_own(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  bool publish(pinrail_thread_t* thread, Miss* miss, pinrail_registration_t* reg);
  bool may_keep(const Request& request, const Miss& miss) const;

  // grdma_device.cc
  pinrail_registration_details_t* details_of(pinrail_registration_t* reg) const;
  Extra* extra_of(pinrail_registration_t* reg) const;
  bool is_made_so(const Request& request, pinrail_registration_t* reg) const;
  bool has_details(const Request& request) const {
    return request.extra != nullptr || limits_of_registrar_.wants_details != 0;
  }
  Status make(const Request& request, const Miss& miss, pinrail_registration_t** reg_out);
  Status register_wider(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  void undo(pinrail_registration_t* reg);
  Status register_on_device(pinrail_thread_t* thread, const Request& request, Miss* miss, pinrail_registration_t* reg);
  Status register_with_rights(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  void discard(pinrail_registration_t* reg);
  pinrail_reason_t leave_index(pinrail_registration_t* reg, pinrail_reason_t reason);
  Status register_range(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg, Room room);
  Status register_with_details(pinrail_thread_t* thread, const Request& request, pinrail_register_request_t* wanted,
                               pinrail_registration_t* reg, Room room);
  // grdma_invalidate_hook.cc
  void kill_batch_hook(pinrail_registration_t* const* regs, size_t count, Ending* ending);
  void record_hook(const Ending& ending) const;
  void displace_hook(pinrail_registration_t* reg, Displaced* displaced);
  static void displaced_hook(void* displaced, pinrail_registration_t* const* regs, size_t count);
  static void invalidated_hook(void* ending, pinrail_registration_t* const* regs, size_t count);

  const size_t own_tail_;
  void* subscription_ = nullptr;

  Outside outside_;
  Extents extents_;
  Reasons reasons_;  // of misses
};

}  // namespace pinrail::grdma

#endif
