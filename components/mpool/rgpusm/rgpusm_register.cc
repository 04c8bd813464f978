// SPDX-License-Identifier: BSD-3-Clause
// From a block to a registration: checks the block, finds its memory in the index, or opens it. API context; the
// caller holds no lock and may hold references.
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/core/own_component.h"
#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

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

}  // namespace

// Creates a pool. NOT_SUPPORTED: the registrar does not open peers' memory.
Status Pool::create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out) {
  const pinrail_registrar_t& registrar = *config.limits;
  if ((registrar.kinds & PINRAIL_KIND_REMOTE) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  gpu_pool::Settings settings;
  Status status = gpu_pool::read_settings(component->host, config, "mpool_rgpusm_", &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool, void (*)(Pool*)> pool(new Pool(component, config, settings, Hits::library),
                                              [](Pool* unused) { delete unused; });
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
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
}

pinrail_status_t Pool::register_entry(void* module, pinrail_thread_t* thread, const pinrail_gpu_block_t* block,
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

// A hit without a lock. False: the block or the range is bad, a hook has noted a range, or no hint answers. The block
// lies in the caller's memory, which a peer may be able to change meanwhile; so each field is read once.
bool Pool::hit(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range,
               uint64_t access_and_flags, pinrail_registration_t** reg_out) {
  if (!has_known_head(block) || !may_hit(access_and_flags) || is_noted_.load(std::memory_order_acquire)) return false;
  const gpu_pool::Key key = key_of(block);
  return is_inside(key.length, range.offset, range.length) && find_hint(thread, key, reg_out);
}

// Reports once for each kind, because a transport may send thousands of such blocks. Returns the status.
Status Pool::report(Report what, const pinrail_gpu_block_t& block, pinrail_status_t status) {
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
Status Pool::check_block(const pinrail_gpu_block_t& block) {
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

// Registers after draining what hooks noted: a hit under the cache lock, or a miss.
pinrail_status_t Pool::register_on_slow_path(pinrail_thread_t* thread, const pinrail_gpu_block_t& block,
                                             const Range& range, uint64_t access_and_flags,
                                             pinrail_handle_t* handle_out) {
  return guarded([&] {
    pinrail_registration_t* reg = nullptr;
    drain_invalidated(thread);
    const Status status = acquire_remote(thread, block, range, access_and_flags, &reg);
    if (status.ok()) *handle_out = gpu_pool::handle_of(reg);
    return status;
  });
}

// A mapping that an event has ended is not found (E1).
Status Pool::find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint64_t, pinrail_handle_t* handle_out) {
  drain_invalidated(thread);
  pinrail_registration_t* reg = nullptr;
  const Status status = find_local(thread, base, length, &reg);
  if (status.ok()) *handle_out = gpu_pool::handle_of(reg);
  return status;
}

// Returns a referenced registration of the block's allocation: from the index, or by opening it. Keeps the exporter's
// Peer in use meanwhile.
Status Pool::acquire_remote(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range,
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
  const auto release = [this](gpu_pool::Peer* used) { release_peer(used); };
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

// Counts this process in the slot before the driver opens the memory (rgpusm/P2): an exporter that defers a free waits
// for it. NOT_FOUND: the memory was freed.
Status Pool::before_open(const gpu_pool::Request& request, pinrail_registration_t* reg) {
  gpu_pool::Identity& identity = gpu_pool::identity_of(reg);
  if (request.key.slot == nullptr) return success();
  if (!request.key.peer->slots->enter(slot_of(*request.key.peer, request.key.slot), request.key.slot_word)) {
    return PINRAIL_ERR_NOT_FOUND;
  }
  identity.slot = request.key.slot;
  identity.slot_word = request.key.slot_word;
  return success();
}

// Whether the memory or its exporter is gone. For a crashed exporter the driver may report that it cannot map the
// memory; eviction would not help.
bool Pool::is_gone(const gpu_pool::Request& request) const {
  const gpu_pool::Key& key = request.key;
  return key.slot != nullptr && !(slots::is_alive(key.slot, key.slot_word) && key.peer->source().is_alive());
}

// The registrar has forgotten the registration, or refused it: uncounts this process in the slot (rgpusm/P2).
void Pool::end_slot(pinrail_registration_t* reg) {
  gpu_pool::Identity& identity = gpu_pool::identity_of(reg);
  if (identity.slot == nullptr) return;
  const gpu_pool::Peer& peer = *gpu_pool::area_of(reg).peer;
  peer.slots->leave(slot_of(peer, identity.slot), identity.slot_word);
  identity.slot = nullptr;
}

// Exporters: opens their segments once, and closes them when the exporter is dead and none of its registrations is
// left. API context; the caller holds no lock, except where a comment says so, and may hold references.

namespace {

constexpr int kPeersPerRound = 16;  // exporters about which one round asks the system

gpu_pool::Owner owner_of(const pinrail_gpu_block_t& block) { return {block.pid, block.start, block.segment}; }

}  // namespace

// The Peer that serves the owner; with no owner, one that serves none. NULL: there is none. Visits all.
gpu_pool::Peer* Pool::find_peer_locked(const gpu_pool::Owner& owner) const {
  gpu_pool::Peer* peer = first_peer();
  while (peer != nullptr && !(peer->owner == owner)) peer = peer->next;
  return peer;
}

// Returns the block's exporter, counted as in use; release_peer() uncounts it. The errors are those of opening its
// segment.
Status Pool::acquire_peer(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) {
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
Status Pool::open_peer_locked(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) {
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

// The request of acquire_peer() has ended.
void Pool::release_peer(gpu_pool::Peer* peer) {
  Guard guard(cache_->mutex);
  --peer->users;
}

// Frees the Peer for another exporter, unless it has a registration or a request, or serves another exporter by now.
void Pool::free_peer(gpu_pool::Peer* peer, const gpu_pool::Owner& owner) {
  std::unique_ptr<slots::Importer> segment;
  Guard guard(cache_->mutex);
  if (peer->regs != nullptr || peer->users != 0 || !(peer->owner == owner)) return;
  segment = std::move(peer->slots);
  peer->deaths = nullptr;
  peer->owner = {};
}

// Closes an exporter's idle registrations if its segment is marked as ended, or if the system is asked about it and it
// does not run any more; and frees its Peer if none is left. Returns how many it closed. Referenced ones die now and
// are closed at their last drop.
template <typename IsAskedFor>
size_t Pool::close_if_ended(pinrail_thread_t* thread, gpu_pool::Peer* peer, IsAskedFor&& is_asked_for) {
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

// Looks at the marks of all exporters, because that costs a load each; asks about other processes with the successor's
// pid. Returns how many registrations it closed.
size_t Pool::close_ended_peers(pinrail_thread_t* thread, const gpu_pool::Peer* successor) {
  const auto had_its_pid = [=](const gpu_pool::Owner& owner) {
    return successor != nullptr && owner.pid == successor->owner.pid && owner.start != successor->owner.start;
  };
  size_t closed = 0;
  for (gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
    closed += close_if_ended(thread, peer, had_its_pid);
  }
  return closed;
}

// Asks about a few exporters in each round; buries the dead ones. One thread at a time; others return.
void Pool::before_progress(pinrail_thread_t* thread) {
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

// Forgets the slots of all registrations, so that this process does not uncount its former identity (rgpusm/P3).
void Pool::forget_slots() {
  Guard guard(cache_->mutex);
  for_each_locked([](pinrail_registration_t* reg) { gpu_pool::identity_of(reg).slot = nullptr; });
}

// Forgets exporters and registrations. After a restart a mapped segment may be a private copy that its exporter does
// not write. The caller ensures that no other call runs on the pool.
Status Pool::restart(pinrail_thread_t* thread) {
  slots::Process next;
  Status status = slots::this_process(&next);
  if (status.ok()) status = restart_registrar(thread);
  if (!status.ok()) return status;
  if (!self_.is(next)) forget_slots();
  release_all(thread, gpu_pool::Device::restarted);
  for (gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) free_peer(peer, peer->owner);
  self_ = next;
  return status;
}

// Kills what overlaps the noted range; then hits need not ask here, unless a hook noted more meanwhile. Several threads
// may do this at once: each kills all that was noted before its call.
void Pool::drain_invalidated(pinrail_thread_t* thread) {
  if (!is_noted_.load()) return;
  uintptr_t base = 0, end = 0;
  uint64_t events = 0;
  {
    Guard guard(invalidated_mutex_);
    base = invalidated_base_;
    end = invalidated_end_;
    events = invalidations_noted_;
  }
  if (base < end) kill_local(thread, base, end - base);
  Guard guard(invalidated_mutex_);
  if (invalidations_noted_ != events) return;
  invalidated_base_ = UINTPTR_MAX;
  invalidated_end_ = 0;
  is_noted_.store(false);
}

// Hook context. A mapping of this process was reported gone: it is added to one range, which covers all that was
// reported since the last call. Takes only invalidated_mutex_, a leaf.

void Pool::invalidate_range_hook(uintptr_t base, size_t length) {
  Guard guard(invalidated_mutex_);
  invalidated_base_ = std::min(invalidated_base_, base);
  invalidated_end_ = std::max(invalidated_end_, base + length);
  ++invalidations_noted_;
  is_noted_.store(true);
}

// Only the pool itself unmaps these mappings, except for events that end all memory, such as the reset of a device.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  if (base == 0 && length == UINTPTR_MAX) static_cast<Pool*>(pool)->invalidate_range_hook(base, length);
}

}  // namespace pinrail::rgpusm
