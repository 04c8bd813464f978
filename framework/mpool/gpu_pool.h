// SPDX-License-Identifier: BSD-3-Clause
// gpu_pool.h - a pool of whole allocations of GPU memory, local or of peers, found by exporter and exact range: what
// gpusm and rgpusm have in common.
//
// Owns     its registrations and its peers. The process's gc thread calls progress() to close what died.
// Threads  all functions may run together, but create() and destroy() exclude every other call on the same pool. All
//          run in API context. The caller of a function whose name ends in _locked holds the cache lock; that of
//          any other one holds no lock of the pool.
// Hook     none. The components' hooks change validity slots, or note a range.
//
// Two registrations answer the same request only if they have the same peer, base, length and id. One slot_word of a
// slot, and one id, belong to one allocation for ever.
//
// gpu_pool/X2  The state word says whether a registration is pending, indexed or dead, and counts its references. The
//     thread whose exchange set `last` owns the registration (engine/P1): it takes it out of the table under the cache
//     lock, if what killed it did not, and closes it.
//
// Nothing that is referenced is closed (R9). If the driver reports that a stale mapping is in the way and it is
// referenced, it stays, and the caller gets WOULD_BLOCK.
//
// gpu_pool/X5  While a peer has a linked registration, its slots stay mapped and its exporter does not change.
// gpu_pool/X7  What kills stale registrations, and those that an event has ended, does not see pending ones. So a
//     registration is indexed only if, under the same lock, its memory is alive and kill_local() has not begun since it
//     was linked (E2).
#ifndef PINRAIL_FRAMEWORK_MPOOL_GPU_POOL_H
#define PINRAIL_FRAMEWORK_MPOOL_GPU_POOL_H

#include <pinrail/gpu.h>

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "base/hit/hints.h"
#include "base/slots/slots.h"
#include "framework/mpool/engine.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

// The block of pinrail/gpu.h: its owner seals it, a peer checks it. All functions may run together, in any context.
namespace pinrail {

static_assert(sizeof(pinrail_gpu_block_t) == PINRAIL_GPU_BLOCK_BYTES, "the block is what the header promises");
static_assert(offsetof(pinrail_gpu_block_t, size) == 64, "a hit reads one line");

// FNV-1a hash of all bytes before the checksum. It detects damage, not forgery.
inline uint64_t checksum_of(const pinrail_gpu_block_t& block) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&block);
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < offsetof(pinrail_gpu_block_t, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

// Completes a block: magic, version, size and checksum.
inline void seal_block(pinrail_gpu_block_t* block) {
  block->magic = PINRAIL_GPU_BLOCK_MAGIC;
  block->version = PINRAIL_GPU_BLOCK_VERSION;
  block->size = PINRAIL_GPU_BLOCK_BYTES;
  block->checksum = checksum_of(*block);
}

// Whether the block has the magic and the version of this release.
inline bool has_known_head(const pinrail_gpu_block_t& block) {
  const uint32_t version = block.version;
  return ((block.magic ^ PINRAIL_GPU_BLOCK_MAGIC) | (version ^ PINRAIL_GPU_BLOCK_VERSION)) == 0;
}

// Whether the range is not empty and lies within an allocation of that many bytes.
inline bool is_inside(uint64_t bytes, size_t offset, size_t length) {
  const size_t end = offset + length;
  return end > offset && end <= bytes;
}

// Checks the head of a block. BAD_PARAM: no block, or an invalid range. VERSION: another version or size.
inline Status check_head(const pinrail_gpu_block_t& block) {
  if (block.magic != PINRAIL_GPU_BLOCK_MAGIC) return PINRAIL_ERR_BAD_PARAM;
  if (block.version != PINRAIL_GPU_BLOCK_VERSION || block.size != PINRAIL_GPU_BLOCK_BYTES) return PINRAIL_ERR_VERSION;
  const bool is_range = block.base != 0 && block.length != 0 && fits(block.base, block.length);
  return is_range ? success() : Status(PINRAIL_ERR_BAD_PARAM);
}

}  // namespace pinrail

namespace pinrail::gpu_pool {

using mpool::Component;
using mpool::Device;
using mpool::handle_of;

struct Settings : mpool::PoolSettings {
  uint64_t gc_interval_ms = 100;
};

struct Peer;

// A pool's own data of a registration, guarded by the cache lock.
struct Area : mpool::Area {
  Peer* peer;
  pinrail_registration_t* previous;  // in the list of its peer
  pinrail_registration_t* next;
  uint64_t events_before;  // the pool's events_ when it was linked
  bool is_indexed;         // in the pool's table
};
static_assert(sizeof(Area) <= PINRAIL_AREA_LARGE, "the library gives so much");

inline Area& area_of(pinrail_registration_t* reg) { return *static_cast<Area*>(arena::area_of(reg)); }
inline const Area& area_of(const pinrail_registration_t* reg) { return *static_cast<const Area*>(arena::area_of(reg)); }

// The identity of the memory: all that a request is compared with, in one line behind the registrar's tail. Written
// before the registration is indexed; a hit reads it while it holds a reference.
struct alignas(64) Identity {
  uint64_t start = 0;
  uintptr_t base = 0;  // in its owner's address space
  size_t length = 0;
  uint64_t id = 0;
  uint64_t segment = 0;
  uint64_t slot_word = 0;                 // value of the slot's word while the memory is allocated
  std::atomic<uint64_t>* slot = nullptr;  // the slot's word; NULL: none
  uint32_t pid = 0;
};
static_assert(sizeof(Identity) == 64, "one line");

inline size_t tail_with_identity(size_t tail_size) { return (tail_size + 63) / 64 * 64 + sizeof(Identity); }
inline Identity& identity_of(pinrail_registration_t* reg) {
  return *reinterpret_cast<Identity*>(reinterpret_cast<char*>(reg + 1) + reg->tail_size - sizeof(Identity));
}
inline const Identity& identity_of(const pinrail_registration_t* reg) {
  return identity_of(const_cast<pinrail_registration_t*>(reg));
}

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

// One allocation as a request names it. slot_word 0: unknown, or no slot. peer and slot are needed only if the
// allocation is not in the index.
struct Key : Identity {
  Peer* peer = nullptr;
};

struct Request {
  Key key;
  uint64_t access_and_flags = 0;               // access in the low half, flags in the high half
  const pinrail_gpu_block_t* block = nullptr;  // of a peer's memory; NULL: this process's memory
  uint32_t flags() const { return static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT); }
};

// The hash in the pool's table: of the exporter and the base.
inline uint64_t hash_of(const Identity& named) {
  const uint64_t exporter = ((named.start ^ named.segment) + named.pid) * 0xD6E8FEB86659FD93u;
  const uint64_t hash = (exporter ^ exporter >> 32 ^ named.base) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

// The hash of an allocation in the table of hints: of the same and its buffer id, so that what is stale has another.
inline uint64_t hint_hash_of(const Identity& named) {
  const uint64_t hash = (hash_of(named) ^ named.id) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

// Whether the memory is still allocated, as its validity slot and its exporter's end mark say. True if it has no slot.
inline bool is_current(const pinrail_registration_t* reg) {
  const Identity& identity = identity_of(reg);
  return identity.slot == nullptr ||
         (slots::is_alive(identity.slot, identity.slot_word) && !area_of(reg).peer->has_ended());
}

inline bool is_same_range(const Identity& identity, const Key& key) {
  return identity.base == key.base && identity.length == key.length && identity.pid == key.pid &&
         identity.start == key.start && identity.segment == key.segment;
}

inline bool is_same_memory(const Identity& identity, const Key& key) {
  return is_same_range(identity, key) && identity.id == key.id &&
         (key.slot_word == 0 || identity.slot_word == key.slot_word);
}

class Pool : public mpool::Engine<Pool, Settings> {
 public:
  virtual ~Pool();

  // Returns a referenced registration, from the index or by the registrar. NOT_FOUND: the memory is gone.
  Status acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  // Look up the index only; NOT_FOUND if it has no match; a match is returned with a reference. find_hint() follows the
  // hints, without a lock; find() then looks under the cache lock. find_local() looks for the registration that is
  // mapped at that address of this process, and visits all.
  bool find_hint(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out);
  Status find(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out);
  Status find_local(const pinrail_thread_t* thread, const Span& span, pinrail_registration_t** reg_out);
  // Closes what died and is unreferenced. Never an error.
  Status progress(pinrail_thread_t* thread);
  const char* check();

 protected:
  friend class mpool::Engine<Pool, Settings>;
  // Hits::library: the library may take and drop references without a call of the pool. Hits::pool: it may not, because
  // each hit asks the driver.
  enum class Hits : uint8_t { library, pool };
  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, Hits hits)
      : Engine(component, config, settings), quick_(hits == Hits::library ? state::kQuick : 0) {}
  // Joins the cache of the configuration's name, and the gc thread if the pool needs it.
  Status join();

  // Steps of the component around a registration, called without a lock. before_open(): before the registrar is called;
  // an error ends the request. after_open(): after the registrar succeeded and before others can find the registration;
  // an error deregisters it. end_slot(): after the registrar has forgotten it, or refused it.
  virtual Status before_open(const Request&, pinrail_registration_t*) { return success(); }
  virtual Status after_open(const Request&, pinrail_registration_t*) { return success(); }
  virtual void end_slot(pinrail_registration_t* reg) = 0;
  // The registrar refused the request: whether the memory or its owner is gone, so that eviction would not help.
  virtual bool is_gone(const Request&) const { return false; }
  // Closes what exporters left that have ended, as far as it is idle; returns how many. With a successor, also asks
  // the system about other exporters of its pid.
  virtual size_t close_ended_peers(pinrail_thread_t*, const Peer* /*successor*/) { return 0; }
  // Called at the start of progress().
  virtual void before_progress(pinrail_thread_t*) {}
  // Handles RESTART: the process may have another identity now. Steps that may fail come before release_all().
  virtual Status restart(pinrail_thread_t* thread) = 0;

  void add_peer(Peer* peer);
  Peer* first_peer() const { return peers_.load(); }
  // Kills the peer's stale registrations (close_all_of(): all of them while it serves that owner) and closes those that
  // are idle. Returns how many it closed.
  size_t sweep(pinrail_thread_t* thread, Peer* peer);
  size_t close_all_of(pinrail_thread_t* thread, Peer* peer, const Owner& owner);
  // kill_overlapping(): kills what overlaps this registration in its owner's addresses and has another id; the caller
  // has a reference. kill_local(): kills what is mapped in that range of this process. Both close what is idle of it.
  void kill_overlapping(pinrail_thread_t* thread, pinrail_registration_t* reg);
  void kill_local(pinrail_thread_t* thread, const Span& span);
  // Calls visit(reg) for all registrations of the pool.
  template <typename Visit>
  void for_each_locked(Visit&& visit) const REQUIRES(cache_->mutex) {
    for (const Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
      for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) visit(reg);
    }
  }

 private:
  struct Pending {
    Key key;
    Pending* next = nullptr;
  };
  enum class LookupResult : uint8_t { found, announced, gone };

  // gpu_pool_register.cc
  LookupResult find_or_announce(pinrail_thread_t* thread, const Request& request, Pending* own,
                                pinrail_registration_t** stale_out, pinrail_registration_t** reg_out);
  void withdraw(Pending* own);
  Status open_and_publish(pinrail_thread_t* thread, const Request& request, bool cached,
                          pinrail_registration_t** reg_out);
  Status open_new(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out);
  Status open_on_device(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status open_or_undo(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg);
  Status publish(pinrail_thread_t* thread, const Request& request, bool cached, pinrail_registration_t* reg);
  bool index_locked(const Request& request, pinrail_registration_t* reg, pinrail_registration_t** stale_out)
      REQUIRES(cache_->mutex);
  void remember(const pinrail_registration_t* reg);
  pinrail_registration_t* match_locked(const Key& key, pinrail_registration_t** mismatch_out) const
      REQUIRES(cache_->mutex);

  // gpu_pool_close.cc
  static int progress_entry(void* pool, pinrail_thread_t* thread);
  void link(pinrail_registration_t* reg);
  void unindex_locked(pinrail_registration_t* reg) REQUIRES(cache_->mutex);
  pinrail_reason_t leave_index(pinrail_registration_t* reg, pinrail_reason_t reason);
  void after_close(pinrail_registration_t* reg);
  template <typename Take>
  size_t close_where(pinrail_thread_t* thread, const Peer* peer, pinrail_reason_t reason, Take&& take);
  template <typename Is>
  size_t kill_where(pinrail_thread_t* thread, const Peer* peer, Is&& is);
  enum class StaleMapping : uint8_t { cleared, in_use };
  StaleMapping clear_stale_mapping(pinrail_thread_t* thread, const Request& request, int* stage);
  size_t close_idle_overlapping(pinrail_thread_t* thread, const Peer& peer, const Span& span, bool* held_out);
  size_t count_indexed() const;
  uint64_t pinned_bytes() const { return cache_->pinned_bytes(false); }  // the registrar says where memory is mapped

  const uint64_t quick_;                     // state::kQuick or 0
  static constexpr size_t kFirstHints = 64;  // lines: 4 KiB
  Hints::Line first_hints_[kFirstHints] = {};
  Hints hints_{first_hints_, kFirstHints};
  char* const* const chunks_ = shortcut::of(host_)->chunks;
  std::atomic<Peer*> peers_{nullptr};
  // Guarded by cache_->mutex.
  std::unordered_multimap<uint64_t, pinrail_registration_t*> table_;  // what is indexed, by hash_of()
  Pending* pending_ = nullptr;
  uint64_t events_ = 0;  // how often kill_local() has begun
  Condition pending_ended_;
};

// What the descriptors of gpusm and rgpusm have in common beside forward.h.

constexpr pinrail_param_t kCountLimit =
    mpool::count_limit_param("Most allocations known to the pools of one cache, in use or not. 0: no limit.");
constexpr pinrail_param_t kGcInterval = mpool::param(
    "gc_interval", "100",
    "Milliseconds between two looks for memory that its owner freed: so long, at most, is an idle mapping of it "
    "kept. 0: no thread looks; what died goes at the next call that needs the driver, or pinrail_mpool_progress().",
    PINRAIL_TYPE_UNSIGNED, 6, nullptr, 0, 3600000);
constexpr pinrail_param_t kMaxRegSize =
    mpool::max_reg_size_param("Largest piece in bytes that the chunk iterator cuts a buffer into.");

// GPU memory needs no memory monitor, because buffer ids and validity slots show when it ends (E5). So "auto" (-1) of
// leave_pinned means yes. An option of the pool's creator wins over the parameter; prefix is that of the component's
// parameters. ERROR: the component has not declared one of the parameters.
inline Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* prefix,
                            Settings* settings_out) {
  mpool::SettingsReader reader(host, prefix);
  reader.read(config, settings_out);
  settings_out->leave_pinned = reader.leave_pinned(config) != 0;
  settings_out->empty_cache = reader.flag("empty_cache");
  settings_out->gc_interval_ms = reader.number("gc_interval");
  return reader.is_complete() ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

}  // namespace pinrail::gpu_pool

#endif
