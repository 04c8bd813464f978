// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/rgpusm; the functions forward to Pool. API context, except
// invalidate_range_hook(). The caller holds no lock and may hold references.
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/core/own_component.h"
#include "framework/mpool/gpu_pool.h"

// The peer's side: other processes' GPU memory, opened once and found again.
//
// Owns     a mapping of each exporter's segment of validity slots.
// Threads  as gpu_pool::Pool. API context without a lock held, unless a comment says otherwise.
// Hook     invalidate_range_hook(), report_hook().
//
// A hit checks the validity slot and the exporter's end mark, a load each. A slot of another segment, exporter or
// generation never matches.
//
// rgpusm_component/P2  A process that has memory open is counted in its slot, from before the driver opens it until
//     after it was closed.
// rgpusm_component/P3  A restart forgets all exporters. If this process's identity has changed, it leaves the old
//     identity's counts in the slots alone, because the process that was checkpointed may still run.

namespace pinrail::rgpusm {
namespace {

using mpool::Component;

constexpr Span kNothing{UINTPTR_MAX, 0};
constexpr int kPeersPerRound = 16;  // exporters about which one round asks the system

// Reads each field once.
gpu_pool::Key key_of(const pinrail_gpu_block_t& block) {
  const auto load = [](const auto& field) { return __atomic_load_n(&field, __ATOMIC_RELAXED); };
  gpu_pool::Key key;
  key.pid = load(block.pid);
  key.start = load(block.start);
  key.segment = load(block.segment);
  key.base = load(block.base);
  key.length = load(block.length);
  key.id = load(block.buffer_id);
  key.slot_word = load(block.slot_word);
  return key;
}

// Whether the index may answer a request with this access and these flags.
bool may_hit(uint64_t access_and_flags) {
  constexpr uint64_t kBypass = uint64_t{PINRAIL_FLAG_CACHE_BYPASS} << PINRAIL_ACCESS_FLAGS_SHIFT;
  return (access_and_flags & (kBypass | PINRAIL_TRAITS_MASK)) == 0;
}

// The number of the slot in the peer's segment.
uint32_t slot_of(const gpu_pool::Peer& peer, const slots::Word* word) {
  return static_cast<uint32_t>(word - peer.slots->word(0));
}

gpu_pool::Owner owner_of(const pinrail_gpu_block_t& block) { return {block.pid, block.start, block.segment}; }

class Pool final : public gpu_pool::Pool {
 public:
  // Creates a pool. NOT_SUPPORTED: the registrar does not open peers' memory.
  static Status create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out) {
    const pinrail_registrar_t& registrar = *config.limits;
    if ((registrar.kinds & PINRAIL_KIND_REMOTE) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
    gpu_pool::Settings settings;
    Status status = gpu_pool::read_settings(component->host, config, "mpool_rgpusm_", &settings);
    if (!status.ok()) return status;
    std::unique_ptr<Pool> pool(new Pool(component, config, settings, Hits::library));
    status = slots::this_process(&pool->self_);
    if (status.ok()) {
      status = component->host->monitor_subscribe(component->host, PINRAIL_KIND_GPU, report_hook, pool.get(),
                                                  &pool->subscription_);
    }
    if (status.ok()) status = pool->join();
    if (status.ok()) *pool_out = pool.release();
    return status;
  }
  // monitor_unsubscribe() waits for hooks in flight.
  ~Pool() override {
    if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
  }
  // The table's register_remote: tries a hit without a lock, then register_on_slow_path().
  static pinrail_status_t register_entry(void* module, pinrail_thread_t* thread, const pinrail_gpu_block_t* block,
                                         size_t offset, size_t length, uint64_t access_and_flags,
                                         pinrail_handle_t* handle_out) {
    Pool* const pool = static_cast<Pool*>(static_cast<gpu_pool::Pool*>(module));
    const Range range = {offset, length};
    pinrail_registration_t* reg = nullptr;
    if (!pool->hit(thread, *block, range, access_and_flags, &reg)) {
      return pool->register_on_slow_path(thread, *block, range, access_and_flags, handle_out);
    }
    *handle_out = gpu_pool::handle_of(reg);
    return PINRAIL_SUCCESS;
  }
  // This pool registers no memory of this process.
  static Status register_mem(pinrail_thread_t*, Span, uint64_t, pinrail_handle_t*) { return PINRAIL_ERR_NOT_SUPPORTED; }
  // Returns a referenced registration that is mapped at that range of this process; NOT_FOUND. Kills first what hooks
  // noted (E1), and visits all: for messages and tests, not for transfers.
  Status find(pinrail_thread_t* thread, Span span, uint64_t, pinrail_handle_t* handle_out) {
    drain_invalidated(thread);
    pinrail_registration_t* reg = nullptr;
    const Status status = find_local(thread, span, &reg);
    if (status.ok()) *handle_out = gpu_pool::handle_of(reg);
    return status;
  }
  // A mapping of this process was reported gone: it is added to one range, which covers all that was reported since the
  // last call. The next call kills what overlaps. Hook context. Takes only invalidated_mutex_, a leaf.
  void invalidate_range_hook(const Span& span) {
    Guard guard(invalidated_mutex_);
    invalidated_ = {std::min(invalidated_.base, span.base), std::max(invalidated_.end, span.end)};
    ++invalidations_noted_;
    is_noted_.store(true);
  }
  // A subscriber to events of GPU memory. Hook context. Only the pool itself unmaps these mappings, except for events
  // that end all memory, such as the reset of a device.
  static void report_hook(void* pool, uintptr_t base, size_t length) {
    if (base == 0 && length == UINTPTR_MAX) static_cast<Pool*>(pool)->invalidate_range_hook(Span::of(base, length));
  }

 private:
  using gpu_pool::Pool::Pool;
  struct Range {  // of an allocation
    size_t offset, length;
  };
  enum class Report : uint8_t { version, user, machine, own, no_entry };
  // Reports once for each kind, because a transport may send thousands of such blocks. Returns the status.
  Status report(Report what, const pinrail_gpu_block_t& block, pinrail_status_t status) {
    constexpr const char* kTopics[] = {"block of another version", "block of another user", "block of another machine",
                                       "own block", "too many importers"};
    const uint32_t bit = 1u << static_cast<unsigned>(what);
    if ((reported_.fetch_or(bit) & bit) != 0) return status;
    show(host_, kTopics[static_cast<size_t>(what)],
         {{"pid", NumberText(block.pid).c_str()},
          {"user", NumberText(block.user).c_str()},
          {"self", NumberText(geteuid()).c_str()},
          {"version", NumberText(block.version).c_str()},
          {"size", NumberText(block.size).c_str()}});
    return status;
  }
  // Checks every field of the block before it is used.
  Status check_block(const pinrail_gpu_block_t& block) {
    const Status head = check_head(block);
    if (head.is(PINRAIL_ERR_VERSION)) return report(Report::version, block, head.code());
    if (!head.ok()) return head;
    if (block.checksum != checksum_of(block)) return PINRAIL_ERR_BAD_PARAM;
    if (block.pid == 0) return PINRAIL_ERR_BAD_PARAM;  // no process; and it marks a Peer that is free
    if (block.user != geteuid()) return report(Report::user, block, PINRAIL_ERR_PERM);
    if (block.machine != self_.machine) return report(Report::machine, block, PINRAIL_ERR_NOT_SUPPORTED);
    const bool is_own = self_.is(block.pid, block.start);
    return is_own ? report(Report::own, block, PINRAIL_ERR_NOT_SUPPORTED) : success();
  }
  // A hit without a lock. False: the block or the range is bad, a hook has noted a range, or no hint answers. The block
  // lies in the caller's memory, which a peer may be able to change meanwhile; so each field is read once.
  bool hit(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range, uint64_t access_and_flags,
           pinrail_registration_t** reg_out) {
    if (!has_known_head(block) || !may_hit(access_and_flags) || is_noted_.load(std::memory_order_acquire)) return false;
    const gpu_pool::Key key = key_of(block);
    return is_inside(key.length, range.offset, range.length) && find_hint(thread, key, reg_out);
  }
  // Registers after draining what hooks noted: a hit under the cache lock, or a miss.
  __attribute__((noinline)) pinrail_status_t register_on_slow_path(pinrail_thread_t* thread,
                                                                   const pinrail_gpu_block_t& block, const Range& range,
                                                                   uint64_t access_and_flags,
                                                                   pinrail_handle_t* handle_out) {
    return guarded([&] {
      pinrail_registration_t* reg = nullptr;
      drain_invalidated(thread);
      const Status status = acquire_remote(thread, block, range, access_and_flags, &reg);
      if (status.ok()) *handle_out = gpu_pool::handle_of(reg);
      return status;
    });
  }
  // Returns a referenced registration of the block's allocation: from the index, or by opening it. Keeps the exporter's
  // Peer in use meanwhile.
  Status acquire_remote(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range,
                        uint64_t access_and_flags, pinrail_registration_t** reg_out) {
    const pinrail_gpu_block_t copy = block;  // the caller's block may change during the call
    Status status = check_block(copy);
    if (status.ok() && !is_inside(copy.length, range.offset, range.length)) status = PINRAIL_ERR_BAD_PARAM;
    if (!status.ok()) return status;
    gpu_pool::Request request;
    request.access_and_flags = access_and_flags;
    request.key = key_of(copy);
    if (may_hit(access_and_flags) && gpu_pool::Pool::find(thread, request.key, reg_out).ok()) return success();
    gpu_pool::Peer* peer = nullptr;
    status = acquire_peer(copy, &peer);
    if (!status.ok()) return status;
    const auto release = [this](gpu_pool::Peer* used) {
      Guard guard(cache_->mutex);
      --used->users;
    };
    const std::unique_ptr<gpu_pool::Peer, decltype(release)> in_use(peer, release);
    request.key.peer = peer;
    request.block = &copy;
    if (peer->slots != nullptr) {
      if (!peer->slots->has_entry()) report(Report::no_entry, copy, PINRAIL_SUCCESS).ignore();
      status = copy.slot < peer->slots->count() ? success() : Status(PINRAIL_ERR_BAD_PARAM);
      if (status.ok()) request.key.slot = peer->slots->word(copy.slot);
    }
    pinrail_registration_t* reg = nullptr;
    if (status.ok()) status = acquire(thread, request, &reg);
    if (!status.ok()) return status;
    // Without slots this block alone tells that what it overlaps was freed; the driver may open both.
    if (peer->slots == nullptr) kill_overlapping(thread, reg);
    *reg_out = reg;
    return status;
  }
  // Counts this process in the slot before the driver opens the memory (rgpusm_component/P2): an exporter that defers a
  // free waits for it. NOT_FOUND: the memory was freed.
  Status before_open(const gpu_pool::Request& request, pinrail_registration_t* reg) override {
    gpu_pool::Identity& identity = gpu_pool::identity_of(reg);
    if (request.key.slot == nullptr) return success();
    if (!request.key.peer->slots->enter(slot_of(*request.key.peer, request.key.slot), request.key.slot_word)) {
      return PINRAIL_ERR_NOT_FOUND;
    }
    identity.slot = request.key.slot;
    identity.slot_word = request.key.slot_word;
    return success();
  }
  // The registrar has forgotten the registration, or refused it: uncounts this process in the slot
  // (rgpusm_component/P2).
  void end_slot(pinrail_registration_t* reg) override {
    gpu_pool::Identity& identity = gpu_pool::identity_of(reg);
    if (identity.slot == nullptr) return;
    const gpu_pool::Peer& peer = *gpu_pool::area_of(reg).peer;
    peer.slots->leave(slot_of(peer, identity.slot), identity.slot_word);
    identity.slot = nullptr;
  }
  // Whether the memory or its exporter is gone. For a crashed exporter the driver may report that it cannot map the
  // memory; eviction would not help.
  bool is_gone(const gpu_pool::Request& request) const override {
    const gpu_pool::Key& key = request.key;
    return key.slot != nullptr && !(slots::is_alive(key.slot, key.slot_word) && key.peer->source().is_alive());
  }
  // Asks about a few exporters in each round; buries the dead ones. One thread at a time; others return.
  void before_progress(pinrail_thread_t* thread) override {
    if (is_checking_.exchange(true)) return;
    drain_invalidated(thread);
    close_ended_peers(thread, nullptr);
    for (int i = 0; i < kPeersPerRound; ++i) {
      last_checked_ = last_checked_ == nullptr ? first_peer() : last_checked_->next;
      if (last_checked_ == nullptr) break;
      close_if_ended(thread, last_checked_, [](const gpu_pool::Owner& owner) { return owner.pid != 0; });
    }
    is_checking_.store(false);
  }
  // Forgets exporters and registrations. After a restart a mapped segment may be a private copy that its exporter does
  // not write. The caller ensures that no other call runs on the pool.
  Status restart(pinrail_thread_t* thread) override {
    slots::Process next;
    Status status = slots::this_process(&next);
    if (status.ok()) status = restart_registrar(thread);
    if (!status.ok()) return status;
    if (!self_.is(next)) {  // so that this process does not uncount its former identity (rgpusm_component/P3)
      Guard guard(cache_->mutex);
      for_each_locked([](pinrail_registration_t* reg) { gpu_pool::identity_of(reg).slot = nullptr; });
    }
    release_all(thread, gpu_pool::Device::restarted);
    for (gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) free_peer(peer, peer->owner);
    self_ = next;
    return status;
  }

  // Exporters: their segments are opened once, and closed when the exporter is dead and none of its registrations is
  // left.

  // Returns the block's exporter, counted as in use, which the caller uncounts. The errors are those of opening its
  // segment.
  Status acquire_peer(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) EXCLUDES(peers_mutex_) {
    Guard opening(peers_mutex_);
    {
      Guard guard(cache_->mutex);
      *peer_out = find_peer_locked(owner_of(block));
      if (*peer_out != nullptr) {
        ++(*peer_out)->users;
        return success();
      }
    }
    return open_peer_locked(block, peer_out);
  }
  // Opens the exporter's segment and adds the exporter; reuses the Peer of a dead one. The caller holds peers_mutex_.
  Status open_peer_locked(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) REQUIRES(peers_mutex_) {
    std::unique_ptr<slots::Importer> segment;
    if (block.segment != 0) {
      segment = std::make_unique<slots::Importer>();
      const Status opened = segment->open(block.user, block.pid, block.start, block.segment);
      if (!opened.ok()) return opened;
      segment->register_importer(self_);
    }
    auto fresh = std::make_unique<gpu_pool::Peer>();
    gpu_pool::Peer* peer = nullptr;
    {
      Guard guard(cache_->mutex);
      peer = find_peer_locked({});
      if (peer == nullptr) peer = fresh.get();
      peer->owner = owner_of(block);
      peer->deaths = segment != nullptr ? segment->deaths() : nullptr;
      peer->deaths_seen = segment != nullptr ? segment->deaths()->load() : 0;
      peer->slots = std::move(segment);
      peer->users = 1;
    }
    if (peer == fresh.get()) add_peer(fresh.release());
    *peer_out = peer;
    return success();
  }
  // The Peer that serves the owner; with no owner, one that serves none. NULL: there is none. Visits all.
  gpu_pool::Peer* find_peer_locked(const gpu_pool::Owner& owner) const REQUIRES(cache_->mutex) {
    gpu_pool::Peer* peer = first_peer();
    while (peer != nullptr && !(peer->owner == owner)) peer = peer->next;
    return peer;
  }
  // Closes an exporter's idle registrations if its segment is marked as ended, or if the system is asked about it and
  // it does not run any more; and frees its Peer if none is left. Returns how many it closed. Referenced ones die now
  // and are closed at their last drop.
  template <typename IsAskedFor>
  size_t close_if_ended(pinrail_thread_t* thread, gpu_pool::Peer* peer, IsAskedFor&& is_asked_for) {
    bool has_ended = false;
    gpu_pool::Owner owner;
    slots::Source source;
    {
      Guard guard(cache_->mutex);
      has_ended = peer->has_ended();
      owner = peer->owner;
      source = peer->source();
    }
    if (!has_ended && is_asked_for(owner)) has_ended = !source.is_alive();
    if (!has_ended) return 0;
    const size_t closed = close_all_of(thread, peer, owner);
    free_peer(peer, owner);
    return closed;
  }
  // Looks at the marks of all exporters, because that costs a load each; asks about other processes with the
  // successor's pid. Returns how many registrations it closed.
  size_t close_ended_peers(pinrail_thread_t* thread, const gpu_pool::Peer* successor) override {
    const auto had_its_pid = [=](const gpu_pool::Owner& owner) {
      return successor != nullptr && owner.pid == successor->owner.pid && owner.start != successor->owner.start;
    };
    size_t closed = 0;
    for (gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
      closed += close_if_ended(thread, peer, had_its_pid);
    }
    return closed;
  }
  // Frees the Peer for another exporter, unless it has a registration or a request, or serves another exporter by now.
  void free_peer(gpu_pool::Peer* peer, const gpu_pool::Owner& owner) {
    std::unique_ptr<slots::Importer> segment;
    Guard guard(cache_->mutex);
    if (peer->regs != nullptr || peer->users != 0 || !(peer->owner == owner)) return;
    segment = std::move(peer->slots);
    peer->deaths = nullptr;
    peer->owner = {};
  }
  // Kills what overlaps the noted range; then hits need not ask here, unless a hook noted more meanwhile. Several
  // threads may do this at once: each kills all that was noted before its call.
  void drain_invalidated(pinrail_thread_t* thread) {
    if (!is_noted_.load()) return;
    Span noted;
    uint64_t events = 0;
    {
      Guard guard(invalidated_mutex_);
      noted = invalidated_;
      events = invalidations_noted_;
    }
    if (noted.base < noted.end) kill_local(thread, noted);
    Guard guard(invalidated_mutex_);
    if (invalidations_noted_ != events) return;
    invalidated_ = kNothing;
    is_noted_.store(false);
  }

  slots::Process self_;
  std::atomic<uint32_t> reported_{0};       // a bit for each Report that was made
  Mutex peers_mutex_{LockRank::caches};     // held while an exporter's segment is opened; before cache_->mutex
  std::atomic<bool> is_checking_{false};    // a thread runs before_progress()
  gpu_pool::Peer* last_checked_ = nullptr;  // by that thread
  // The union of mappings of this process that were reported gone. While there is one, hits do not follow hints.
  HookMutex invalidated_mutex_{LockRank::pending, HookLocks::of(host_)};
  Span invalidated_ GUARDED_BY(invalidated_mutex_) = kNothing;
  uint64_t invalidations_noted_ GUARDED_BY(invalidated_mutex_) = 0;
  std::atomic<bool> is_noted_{false};
  void* subscription_ = nullptr;
};

constexpr char kHelp[] =
#include "components/mpool/rgpusm/rgpusm_help.txt"
    ;

constexpr const char* kOldSizeLimit[] = {"mpool_rgpusm_rcache_size_limit", nullptr};

constexpr pinrail_param_t kParams[] = {
    mpool::leave_pinned_param("yes",
                              "Whether a peer's memory stays mapped when it is released. no: every transfer opens and "
                              "closes it, some 100 us."),
    mpool::size_limit_param("Most bytes of peers' memory mapped by the pools of one cache, in use or not. 0: no limit. "
                            "With leave_pinned one that was not used lately goes; without, a request above it fails.",
                            kOldSizeLimit),
    gpu_pool::kCountLimit,
    mpool::kEmptyCache,
    mpool::kPrintStats,
    gpu_pool::kGcInterval,
    gpu_pool::kMaxRegSize};

constexpr const char* kSynonymPrefixes[] = {"rcache_rgpusm_", nullptr};

using Forward = mpool::Forward<Component, Pool, gpu_pool::Pool>;

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::table();
  ops.kinds = PINRAIL_KIND_REMOTE;
  ops.register_remote = Pool::register_entry;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent = with_params(
    describe(PINRAIL_MPOOL_ABI, 20, "mpool", "rgpusm",
             "GPU memory across processes, peer's side: opens other processes' GPU memory and keeps it open.",
             Forward::open, Forward::close, &kOps),
    kHelp, kParams, kSynonymPrefixes);

}  // namespace
}  // namespace pinrail::rgpusm

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::rgpusm::kComponent;
