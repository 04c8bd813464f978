// SPDX-License-Identifier: BSD-3-Clause
// gpu_pool.h - a pool of whole allocations of GPU memory, local or of peers, found by exporter and exact range: what
// gpusm and rgpusm have in common.
//
// Owns     its registrations and its peers. The process's gc thread calls progress() to close what died.
// Threads  all functions may run together, but create() and destroy() exclude every other call on the same pool. All
//          run in API context. A function whose name ends in _locked runs under the cache lock; before all others the
//          caller holds no lock of the pool.
// Hook     none. The components' hooks change validity slots, or note a range and shut the table that hits read.
//
// gpu_pool/X1  Two registrations answer the same request only if they have the same peer, base, length and id. A hit
//     compares the peer and the slot, or the peer and the id if there is no slot: one slot_word of a slot, and one id,
//     belong to one allocation for ever (base/hit/allocation_table.h).
// gpu_pool/X2  The state word says whether a registration is pending, indexed or dead. Registrations that stay without
//     references are counted per thread (base/registration/references.h), the others in their state words. Exactly one
//     thread finds that a registration is dead and unreferenced, and closes it: for a count in the word the last drop;
//     for counts per thread the first thread that sums to 0 under the cache lock, and it claims the registration then.
//     Registrations that die together are summed with one barrier. Those found referenced are marked as summed
//     (references/C5), so that their last drop is known without another barrier. A sum may include a speculative
//     reference that is rolled back later: progress() sums such registrations again.
// gpu_pool/X3  Nothing that is referenced is closed (R9). If the driver reports that a stale mapping is in the way and
//     it is referenced, it stays, and the caller gets WOULD_BLOCK.
// gpu_pool/X4  No lock is held across a call of the registrar. A hit takes no lock (base/hit/allocation_table.h).
// gpu_pool/X5  A claim by the evictor lasts only while the cache lock is held, and hits do not take a claimed
//     registration. While a peer has a linked registration, its slots stay mapped and its owner record does not
//     change.
// gpu_pool/X6  A thread closes what it has claimed, also if the registrar throws or the thread ends inside it: the
//     registration being closed is dismissed, and the others are left for the next caller.
// gpu_pool/X7  What kills stale registrations, and those that an event has ended, does not see pending ones. So a
//     registration is indexed only if, under the same lock, its memory is alive and kill_local() has not begun since it
//     was linked (E2).
#ifndef PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_POOL_H
#define PINRAIL_COMPONENTS_COMMON_GPU_POOL_GPU_POOL_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <utility>
#include <vector>

#include "base/core/status.h"
#include "base/hit/hit_counts.h"
#include "base/registration/references.h"
#include "base/slots/slots.h"
#include "components/common/gpu_pool/allocation_index.h"
#include "components/common/gpu_pool/gpu_cache.h"
#include "components/common/gpu_pool/settings.h"
#include "components/common/gpu_pool/table.h"

namespace pinrail::gpu_pool {

// An exporter: one segment of validity slots of one process. The peer of gpusm is the process itself. `pool` and
// `next` are written once, the rest under the cache lock; hits compare a copy (gpu_pool/X5). The object may serve
// another exporter later.
struct Peer {
  pinrail_owner_t owner{};  // pid 0: the object is free
  class Pool* pool = nullptr;
  Peer* next = nullptr;
  uint64_t number = 0;  // of its owner record in the table that hits read; 0: none yet
  uint32_t users = 0;   // requests under way for its memory
  pinrail_registration_t* regs = nullptr;
  const std::atomic<uint64_t>* deaths = nullptr;  // count of deaths in its segment; NULL: it has no segment
  uint64_t deaths_seen = 0;
  std::unique_ptr<slots::Importer> slots;

  bool is_same_process(const Peer& other) const {
    return owner.pid == other.owner.pid && owner.start == other.owner.start;
  }
  bool is(uint64_t pid, uint64_t start, uint64_t segment) const {
    return owner.pid == pid && owner.start == start && owner.segment == segment;
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
  // Makes the object serve this exporter. words: its validity words, NULL if it has none.
  void set_exporter(uint64_t pid, uint64_t start, uint64_t segment, const slots::Word* words) {
    owner = {pid, start, segment, reinterpret_cast<const uint64_t*>(words)};
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

// A batch of registrations to close: dead, unreferenced and claimed by this thread.
class Victims {
 public:
  static constexpr size_t kRoom = 64;
  bool full() const { return count_ == kRoom; }
  void add(pinrail_registration_t* reg) { regs_[count_++] = reg; }
  size_t count() const { return count_; }
  pinrail_registration_t* const* begin() const { return regs_; }
  pinrail_registration_t* const* end() const { return regs_ + count_; }

 private:
  pinrail_registration_t* regs_[kRoom];
  size_t count_ = 0;
};

class Pool {  // NOLINT(clang-analyzer-optin.performance.Padding): hits are counted on lines of their own
 public:
  virtual ~Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns a referenced registration, from the index or by the registrar.
  Status acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  // Look up the index only; NOT_FOUND if it has no match; a match is returned with a reference. find() looks by id
  // without a lock and then calls find_indexed(), which compares the whole key under the cache lock. find_local()
  // looks for the registration that is mapped at that address of this process, and visits all.
  Status find(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out);
  Status find_indexed(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out);
  // The table by which the C face answers hits; NULL without leave_pinned.
  const pinrail_allocation_table_t* allocations() const {
    return settings_.leave_pinned ? &allocations_.table() : nullptr;
  }
  Status find_local(const pinrail_thread_t* thread, uintptr_t base, size_t length, pinrail_registration_t** reg_out);
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle);
  // The C face dropped a reference of a dead registration: closes it if that was the last one.
  void finish(pinrail_thread_t* thread, pinrail_handle_t handle);
  static pinrail_status_t deregister_entry(void* module, pinrail_thread_t* thread, pinrail_handle_t handle);
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
  // known_by: whether hits of this pool look by buffer id or by validity slot.
  Pool(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const Settings& settings, Caches* caches,
       allocation_table::By known_by)
      : host_(host), config_(config), settings_(settings), caches_(caches), known_by_(known_by) {}
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
  size_t close_all_of(pinrail_thread_t* thread, Peer* peer, const pinrail_owner_t& owner);
  // kill_overlapping(): kills what overlaps this registration in its owner's addresses and has another id; the caller
  // has a reference. kill_local(): kills what is mapped in that range of this process. Both close what is idle of it.
  void kill_overlapping(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void kill_local(pinrail_thread_t* thread, uintptr_t base, size_t length);
  void forget_slot_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);

  const pinrail_host_t* const host_;
  const pinrail_mpool_config_t config_;
  const Settings settings_;
  Cache* cache_ = nullptr;
  HitCounts hits_;
  // The table that hits read; it changes under cache_->mutex.
  Allocations allocations_{shortcut::of(host_)->chunks, hits_.lines(), HitCounts::kAlone};
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
  Status open_new(pinrail_thread_t* thread, const Request& request, bool cached, pinrail_registration_t** reg_out);
  Status open_on_device(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status open_or_undo(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status admit(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void withdraw(Pending* own);
  pinrail_registration_t* match_locked(const Key& key, pinrail_registration_t** mismatch_out) const
      REQUIRES(cache_->mutex);
  bool take_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_registration_t** reg_out)
      REQUIRES(cache_->mutex);
  bool is_kept(uint32_t flags) const {
    return settings_.leave_pinned && (flags & PINRAIL_FLAG_PERSISTENT) == 0 &&
           host_->registrations->counts_per_thread(host_) != 0;
  }
  Status drop_elsewhere(pinrail_thread_t* thread, pinrail_handle_t handle);
  Status drop_in_word(pinrail_thread_t* thread, pinrail_handle_t handle);
  void report_limit(const pinrail_registration_t* reg);

  // publish.cc
  Status publish(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  void leave_unindexed_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  void index_locked(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg, Victims* victims)
      REQUIRES(cache_->mutex);

  // references.cc. A sum is exact if no thread can take a new reference: the registration is claimed or dead.
  int64_t references_of_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) const
      REQUIRES(cache_->mutex);
  pinrail_status_t drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle);
  bool confirm_held(const pinrail_thread_t* thread, pinrail_handle_t handle);
  bool claim_if_idle_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  void claim_dead_locked(const pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count,
                         Victims* victims) REQUIRES(cache_->mutex);
  void claim_again_locked(const pinrail_thread_t* thread, Victims* victims) REQUIRES(cache_->mutex);
  void add_victim_locked(pinrail_registration_t* reg, Victims* victims) REQUIRES(cache_->mutex);
  // Remove the registration's entry from the table that hits read before it is summed, and insert it again after.
  uint64_t entry_key(const pinrail_registration_t* reg) const;
  void hide_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  void show_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  void sum_again(pinrail_thread_t* thread);

  // evict.cc
  enum class StaleMapping : uint8_t { cleared, in_use };
  StaleMapping clear_stale_mapping(pinrail_thread_t* thread, const Request& request, int* stage);
  size_t close_idle_overlapping(pinrail_thread_t* thread, const Peer& peer, uintptr_t base, size_t length,
                                bool* held_out);
  bool close_oldest_of(pinrail_thread_t* thread, const Peer& peer);
  bool wait_for_closing(const pinrail_thread_t* thread);
  bool evict_oldest(pinrail_thread_t* thread);
  bool is_out_of_reach_locked(const pinrail_registration_t* reg) const REQUIRES(cache_->mutex);
  bool could_fit_locked(uint64_t bytes) const REQUIRES(cache_->mutex);
  bool make_room(pinrail_thread_t* thread);
  // May claim a registration of another pool of the cache: all of them share cache_->mutex.
  pinrail_registration_t* claim_oldest_locked(const pinrail_thread_t* thread) REQUIRES(cache_->mutex);
  bool claim_for_closing_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  using Aged = std::pair<uint64_t, pinrail_registration_t*>;  // last use, registration
  Aged next_oldest_of_locked(const Peer& peer, const Aged& after) REQUIRES(cache_->mutex);
  bool kill_and_unindex_locked(pinrail_registration_t* reg, uint64_t* word_out) REQUIRES(cache_->mutex);
  // May be called for another pool of the cache, under the shared cache_->mutex.
  uint64_t last_use_locked(const pinrail_registration_t* reg) const REQUIRES(cache_->mutex);
  void unindex_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  mpool::Usage usage() const;
  void close(pinrail_thread_t* thread, const Victims& victims, pinrail_reason_t reason);
  void deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                              Device device);
  void close_claimed(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason);
  void defer_closing(pinrail_registration_t* const* begin, pinrail_registration_t* const* end);
  bool close_deferred(pinrail_thread_t* thread);
  void link_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  void unlink_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  template <typename Is>
  size_t kill_where(pinrail_thread_t* thread, Peer* peer, Is&& is);

  // destroy.cc
  static int progress_entry(void* pool, pinrail_thread_t* thread);
  Status join_gc_thread();
  size_t count_referenced_locked(std::string* list_out) REQUIRES(cache_->mutex);
  size_t take_batch_of(Peer* peer, pinrail_registration_t** regs_out, int64_t* references_out);
  void release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, int64_t references, Device device);
  void leave_eviction() EXCLUDES(cache_->mutex);
  void release_all(pinrail_thread_t* thread, Device device);

  // ft.cc
  void release_idle(pinrail_thread_t* thread);

  Caches* const caches_;
  const allocation_table::By known_by_;
  pinrail_registrar_t limits_of_registrar_{};
  std::atomic<Peer*> peers_{nullptr};
  // Guarded by cache_->mutex.
  Table table_;
  Pending* pending_ = nullptr;
  size_t linked_ = 0;
  uint64_t events_ = 0;               // how often kill_local() has begun
  std::atomic<size_t> deferred_{0};   // number of registrations whose closing was deferred (gpu_pool/X6)
  std::atomic<size_t> held_dead_{0};  // dead, counted per thread, and referenced when last summed
  uint64_t rollbacks_at_sum_ = 0;     // value of *thread->rollbacks before the first of those sums
  void* gc_member_ = nullptr;
  std::atomic<uint64_t> misses_{0}, evictions_{0}, retries_{0};
};

}  // namespace pinrail::gpu_pool

#endif
