// SPDX-License-Identifier: BSD-3-Clause
// Exporters: opens their segments once, and closes them when the exporter is dead and none of its registrations is
// left. API context; the caller holds no lock, except where a comment says so, and may hold references.
#include <algorithm>

#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

constexpr int kPeersPerRound = 16;  // exporters about which one round asks the system

gpu_pool::Owner owner_of(const pinrail_gpu_block_t& block) { return {block.pid, block.start, block.segment}; }

}  // namespace

// Returns the block's exporter, counted as in use; release_peer() uncounts it. The errors are those of opening its
// segment.
Status Pool::acquire_peer(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) {
  Guard opening(peers_mutex_);
  {
    Guard guard(cache_->mutex);
    const auto known = known_.find(owner_of(block));
    if (known != known_.end()) {
      ++known->second->users;
      *peer_out = known->second;
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
    peer = free_peers_.empty() ? fresh.get() : free_peers_.back();
    free_peers_.reserve(peer_objects_ + 1);
    known_.emplace(owner_of(block), peer);  // the last statement that may throw
    if (free_peers_.empty()) {
      ++peer_objects_;
    } else {
      free_peers_.pop_back();
    }
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

// Closes a dead exporter's idle registrations, and frees its Peer if none is left; returns how many it closed.
// Referenced ones die now and are closed at their last drop. Does nothing if the Peer serves another exporter by now.
size_t Pool::close_dead_peer(pinrail_thread_t* thread, gpu_pool::Peer* peer, const gpu_pool::Owner& owner) {
  const size_t closed = close_all_of(thread, peer, owner);
  free_peer(peer, owner);
  return closed;
}

// Frees the Peer for another exporter, unless it has a registration or a request, or serves another exporter by now.
void Pool::free_peer(gpu_pool::Peer* peer, const gpu_pool::Owner& owner) {
  std::unique_ptr<slots::Importer> segment;
  Guard guard(cache_->mutex);
  if (peer->regs != nullptr || peer->users != 0 || peer->owner.pid == 0) return;
  if (!(peer->owner == owner)) return;
  known_.erase(peer->owner);
  free_peers_.push_back(peer);  // has room: open_peer_locked() reserved it
  segment = std::move(peer->slots);
  peer->deaths = nullptr;
  peer->owner = {};
}

// Closes what exporters left whose segments are marked as ended: of all, because that costs a load each. Also of
// other processes with the successor's pid that do not run any more. Returns how many it closed.
size_t Pool::close_ended_peers(pinrail_thread_t* thread, const gpu_pool::Peer* successor) {
  size_t closed = 0;
  for (gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
    bool has_ended = false, had_its_pid = false;
    gpu_pool::Owner owner;
    slots::Source source;
    {
      Guard guard(cache_->mutex);
      has_ended = peer->has_ended();
      owner = peer->owner;
      source = peer->source();
      had_its_pid = successor != nullptr && owner.pid == successor->owner.pid && owner.start != successor->owner.start;
    }
    if (had_its_pid && !has_ended) has_ended = !source.is_alive();
    if (has_ended) closed += close_dead_peer(thread, peer, owner);
  }
  return closed;
}

// Asks about a few exporters in each round; buries the dead ones. One thread at a time; others return.
void Pool::before_progress(pinrail_thread_t* thread) {
  if (is_checking_.exchange(true)) return;
  drain_invalidated(thread);
  close_ended_peers(thread, nullptr);
  for (int i = 0; i < kPeersPerRound; ++i) {
    gpu_pool::Owner owner;
    slots::Source source;
    {
      Guard guard(cache_->mutex);
      last_checked_ = last_checked_ == nullptr ? first_peer() : last_checked_->next;
      if (last_checked_ == nullptr) break;
      owner = last_checked_->owner;
      source = last_checked_->source();
    }
    if (source.pid != 0 && !source.is_alive()) close_dead_peer(thread, last_checked_, owner);
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
