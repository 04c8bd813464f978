// SPDX-License-Identifier: BSD-3-Clause
// gpu_pool.h - a pool of whole allocations of GPU memory, local or of peers, found by exporter and exact range: what
// gpusm and rgpusm have in common.
//
// Owns     its registrations and its peers. The process's gc thread calls progress() to close what died.
// Threads  all functions may run together, but create() and destroy() exclude every other call on the same pool. All
//          run in API context. A function whose name ends in _locked runs under the cache lock; before all others the
//          caller holds no lock of the pool.
// Hook     none. The components' hooks change validity slots, or note a range.
//
// gpu_pool/X1  Two registrations answer the same request only if they have the same peer, base, length and id. One
//     slot_word of a slot, and one id, belong to one allocation for ever.
// gpu_pool/X2  The state word says whether a registration is pending, indexed or dead, and counts its references. The
//     thread whose exchange set `last` owns the registration: it takes it out of the index and the LRU list under the
//     cache lock, and closes it. A registration is published, retired and killed under that lock; a transient one dies
//     by its last release, without the lock, and stays in the table until its owner takes it out.
// gpu_pool/X3  Nothing that is referenced is closed (R9). If the driver reports that a stale mapping is in the way and
//     it is referenced, it stays, and the caller gets WOULD_BLOCK.
// gpu_pool/X4  No lock is held across a call of the registrar. A hit takes no lock: it follows a hint, takes a
// reference
//     and compares the registration's identity, then asks its slot and its exporter's end mark.
// gpu_pool/X5  While a peer has a linked registration, its slots stay mapped and its exporter does not change.
// gpu_pool/X7  What kills stale registrations, and those that an event has ended, does not see pending ones. So a
//     registration is indexed only if, under the same lock, its memory is alive and kill_local() has not begun since it
//     was linked (E2).
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_POOL_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_POOL_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <memory>
#include <string>

#include "base/core/status.h"
#include "base/hit/hints.h"
#include "base/hit/hit_counts.h"
#include "base/registration/shortcut.h"
#include "base/slots/slots.h"
#include "components/common/gpu_pool/gpu_cache.h"
#include "components/common/gpu_pool/settings.h"
#include "components/common/gpu_pool/table.h"

namespace pinrail::gpu_pool {

// One segment of validity slots of one process.
struct Owner {
  uint64_t pid = 0;  // 0: none
  uint64_t start = 0;
  uint64_t segment = 0;
  bool operator==(const Owner& other) const {
    return pid == other.pid && start == other.start && segment == other.segment;
  }
};

// An exporter. The peer of gpusm is the process itself. `pool` and
// `next` are written once, the rest under the cache lock; hits read `slots` (gpu_pool/X5). The object may serve another
// exporter later.
struct Peer {
  Owner owner;  // pid 0: the object is free
  class Pool* pool = nullptr;
  Peer* next = nullptr;
  uint32_t users = 0;  // requests under way for its memory
  pinrail_registration_t* regs = nullptr;
  const std::atomic<uint64_t>* deaths = nullptr;  // count of deaths in its segment; NULL: it has no segment
  uint64_t deaths_seen = 0;
  std::unique_ptr<slots::Importer> slots;

  bool is_same_process(const Peer& other) const {
    return owner.pid == other.owner.pid && owner.start == other.owner.start;
  }
  bool has_ended() const { return slots != nullptr && slots->has_ended(); }
  // Identifies the process, to ask the kernel whether it is alive.
  slots::Source source() const {
    if (slots != nullptr) return slots->source();
    slots::Source process;
    process.pid = static_cast<uint32_t>(owner.pid);
    process.start = owner.start;
    return process;
  }
};

// One allocation as a request names it. peer is needed only if the allocation is not in the index.
struct Key {
  uint32_t pid = 0;
  uint64_t start = 0;
  uint64_t segment = 0;
  uintptr_t base = 0;
  size_t length = 0;
  uint64_t id = 0;
  uint64_t slot_word = 0;  // value of the slot's word; 0: unknown, or no slot
  Peer* peer = nullptr;
  std::atomic<uint64_t>* slot = nullptr;
};

struct Request {
  Key key;
  uint64_t access_and_flags = 0;               // access in the low half, flags in the high half
  const pinrail_gpu_block_t* block = nullptr;  // of a peer's memory; NULL: this process's memory
  uint32_t flags() const { return static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT); }
};

// Registrations that the thread owns and has yet to close; they are counted in Cache::closing.
class Victims {
 public:
  void add(pinrail_registration_t* reg) {
    area_of(reg).newer = first_;
    first_ = reg;
    ++count_;
  }
  // NULL: there is none left.
  pinrail_registration_t* take() {
    pinrail_registration_t* const reg = first_;
    if (reg != nullptr) first_ = area_of(reg).newer;
    return reg;
  }
  size_t count() const { return count_; }  // how many were added

 private:
  pinrail_registration_t* first_ = nullptr;
  size_t count_ = 0;
};

class Pool {
 public:
  virtual ~Pool() { hints_.free_tables(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns a referenced registration, from the index or by the registrar.
  Status acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  // Look up the index only; NOT_FOUND if it has no match; a match is returned with a reference. find_hint() follows the
  // hints, without a lock; find() then looks under the cache lock. find_local() looks for the registration that is
  // mapped at that address of this process, and visits all.
  bool find_hint(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out);
  Status find(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out);
  Status find_local(const pinrail_thread_t* thread, uintptr_t base, size_t length, pinrail_registration_t** reg_out);
  static pinrail_status_t deregister_entry(void* module, pinrail_thread_t* thread, pinrail_handle_t handle);
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
    return deregister_entry(this, thread, handle);
  }
  // Deregisters the least recently used idle registration of the cache; NOT_FOUND: none is idle.
  Status evict(pinrail_thread_t* thread);
  // Closes what died and is unreferenced. Never an error.
  Status progress(pinrail_thread_t* thread);
  Status ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state);
  Status destroy(pinrail_thread_t* thread, uint32_t flags);  // ends with `delete this`
  void stats(pinrail_mpool_stats_t* stats_out);
  void counters(pinrail_mpool_stats_t* stats_out) const;  // only those that rise monotonically, and the limits
  // The number of referenced registrations.
  size_t referenced();
  // Checks the invariants; returns the first that is broken, NULL: none.
  const char* check();
  const Settings& settings() const { return settings_; }
  size_t max_reg_size() const { return settings_.max_reg_size; }

 protected:
  // Hits::library: the library may take and drop references without a call of the pool. Hits::pool: it may not, because
  // each hit asks the driver.
  enum class Hits : uint8_t { library, pool };
  Pool(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const Settings& settings, Caches* caches,
       Hits hits)
      : host_(host),
        config_(config),
        settings_(settings),
        caches_(caches),
        quick_(hits == Hits::library ? state::kQuick : 0) {}
  // Joins the cache of that name, and the gc thread if the pool needs it. On an error neither is joined.
  Status join(const char* cache_name);

  // Hooks of the component around a registration, called without a lock. before_open(): before the registrar is called;
  // an error ends the request. after_open(): after the registrar succeeded and before others can find the registration;
  // an error deregisters it. after_close(): after the registrar has forgotten it, or refused it.
  virtual Status before_open(const Request&, pinrail_registration_t*) { return success(); }
  virtual Status after_open(const Request&, pinrail_registration_t*) { return success(); }
  virtual void after_close(pinrail_registration_t* reg) = 0;
  // The registrar refused the request: whether the memory or its owner is gone, so that eviction would not help.
  virtual bool is_gone(const Request&) const { return false; }
  // Closes what exporters left that have ended, as far as it is idle; returns how many. With a successor, also asks
  // the system about other exporters of its pid.
  virtual size_t close_ended_peers(pinrail_thread_t*, const Peer* /*successor*/) { return 0; }
  // Called at the start of progress().
  virtual void before_progress(pinrail_thread_t*) {}
  // Handles RESTART: the process may have another identity now. Steps that may fail come before abandon_all().
  virtual Status restart(pinrail_thread_t* thread) = 0;
  Status restart_registrar(pinrail_thread_t* thread) const;
  void abandon_all(pinrail_thread_t* thread);

  void add_peer(Peer* peer);
  Peer* first_peer() const { return peers_.load(); }
  bool has_peers() const { return peers_.load() != nullptr; }
  // Kills the peer's stale registrations (everything: all of them) and closes those that are idle. Returns how many it
  // closed.
  size_t sweep(pinrail_thread_t* thread, Peer* peer);
  size_t close_all_of(pinrail_thread_t* thread, Peer* peer, const Owner& owner);
  // kill_overlapping(): kills what overlaps this registration in its owner's addresses and has another id; the caller
  // has a reference. kill_local(): kills what is mapped in that range of this process. Both close what is idle of it.
  void kill_overlapping(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void kill_local(pinrail_thread_t* thread, uintptr_t base, size_t length);

  const pinrail_host_t* const host_;
  const pinrail_mpool_config_t config_;
  const Settings settings_;
  Cache* cache_ = nullptr;
  HitCounts hits_;
  std::atomic<uint64_t> invalidations_{0};

 private:
  struct Pending {
    Key key;
    Pending* next = nullptr;
  };
  enum class LookupResult : uint8_t { found, announced, gone };
  enum class Device : uint8_t { registered, restarted };  // restarted: after a restart, the device must not be called

  // register.cc
  LookupResult find_or_announce(pinrail_thread_t* thread, const Request& request, Pending* own, Victims* victims,
                                pinrail_registration_t** reg_out);
  Status open_and_publish(pinrail_thread_t* thread, const Request& request, bool cached,
                          pinrail_registration_t** reg_out);
  Status open_new(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status open_on_device(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status open_or_undo(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status admit(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void withdraw(Pending* own);
  pinrail_registration_t* match_locked(const Key& key, pinrail_registration_t** mismatch_out) const
      REQUIRES(cache_->mutex);
  bool is_kept(uint32_t flags) const { return settings_.leave_pinned && (flags & PINRAIL_FLAG_PERSISTENT) == 0; }
  void note_release(pinrail_handle_t handle);
  void close_released(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void report_limit(const pinrail_registration_t* reg);

  // publish.cc
  Status publish(pinrail_thread_t* thread, const Request& request, bool cached, pinrail_registration_t* reg);
  bool index_locked(const Request& request, pinrail_registration_t* reg, Victims* victims) REQUIRES(cache_->mutex);
  void remember(const pinrail_registration_t* reg);

  // evict.cc
  enum class StaleMapping : uint8_t { cleared, in_use };
  StaleMapping clear_stale_mapping(pinrail_thread_t* thread, const Request& request, int* stage);
  size_t close_idle_overlapping(pinrail_thread_t* thread, const Peer& peer, uintptr_t base, size_t length,
                                bool* held_out);
  bool close_oldest_of(pinrail_thread_t* thread, const Peer& peer);
  bool wait_for_closing(const pinrail_thread_t* thread);
  bool evict_oldest(pinrail_thread_t* thread);
  bool is_out_of_reach_locked(const pinrail_registration_t* reg) const REQUIRES(cache_->mutex);
  template <typename Visit>
  pinrail_registration_t* find_idle_locked(Visit&& visit) REQUIRES(cache_->mutex);
  bool could_fit_locked(uint64_t bytes) REQUIRES(cache_->mutex);
  bool make_room(pinrail_thread_t* thread);
  // May retire a registration of another pool of the cache: all of them share cache_->mutex.
  pinrail_registration_t* retire_oldest_locked() REQUIRES(cache_->mutex);
  bool retire_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  bool kill_locked(pinrail_registration_t* reg, Victims* victims) REQUIRES(cache_->mutex);
  void unindex_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  mpool::Usage usage() const;
  void close(pinrail_thread_t* thread, Victims* victims, pinrail_reason_t reason);
  void deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                              Device device);
  void close_owned(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason);
  void link_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  void unlink_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  template <typename Is>
  size_t kill_where(pinrail_thread_t* thread, Peer* peer, Is&& is);

  // destroy.cc
  static int progress_entry(void* pool, pinrail_thread_t* thread);
  Status join_gc_thread();
  size_t count_referenced_locked(std::string* list_out) REQUIRES(cache_->mutex);
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, Device device);
  void leave_eviction() EXCLUDES(cache_->mutex);
  void release_all(pinrail_thread_t* thread, Device device);

  // ft.cc
  void release_idle(pinrail_thread_t* thread);

  Caches* const caches_;
  const uint64_t quick_;  // state::kQuick or 0
  pinrail_registrar_t limits_of_registrar_{};
  static constexpr size_t kFirstHints = 64;  // lines: 4 KiB
  Hints::Line first_hints_[kFirstHints] = {};
  Hints hints_{first_hints_, kFirstHints};
  char* const* const chunks_ = shortcut::of(host_)->chunks;
  std::atomic<Peer*> peers_{nullptr};
  // Guarded by cache_->mutex.
  Table table_;
  Pending* pending_ = nullptr;
  size_t linked_ = 0;
  uint64_t events_ = 0;  // how often kill_local() has begun
  void* gc_member_ = nullptr;
  std::atomic<uint64_t> misses_{0}, evictions_{0}, retries_{0};
};

}  // namespace pinrail::gpu_pool

#endif
