// SPDX-License-Identifier: BSD-3-Clause
// Exporters: opens their segments once, and closes them when the exporter is dead and none of its registrations is
// left. API context; the caller holds no lock, except where a comment says so, and may hold references.
#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

constexpr int kLooks = 16;  // exporters that one round checks

Exporter exporter_of(const pinrail_gpu_block_t& block) { return {block.pid, block.start, block.segment}; }
Exporter exporter_of(const gpu_pool::Peer& peer) { return {peer.owner.pid, peer.owner.start, peer.owner.segment}; }

}  // namespace

// Returns the block's exporter, counted as in use; release_peer() uncounts it. The errors are those of opening its
// segment.
Status Pool::take_peer(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) {
  Guard opening(peers_mutex_);
  {
    Guard guard(cache_->mutex);
    const auto known = known_.find(exporter_of(block));
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
    segment->sit(self_);
  }
  auto fresh = std::make_unique<gpu_pool::Peer>();
  gpu_pool::Peer* peer = nullptr;
  {
    Guard guard(cache_->mutex);
    peer = vacant_.empty() ? fresh.get() : vacant_.back();
    vacant_.reserve(places_ + 1);
    known_.emplace(exporter_of(block), peer);  // the last statement that may throw
    if (vacant_.empty()) {
      ++places_;
    } else {
      vacant_.pop_back();
    }
    peer->become(block.pid, block.start, block.segment, segment != nullptr ? segment->word(0) : nullptr);
    peer->deaths = segment != nullptr ? segment->deaths() : nullptr;
    peer->deaths_seen = segment != nullptr ? segment->deaths()->load() : 0;
    peer->slots = std::move(segment);
    peer->users = 1;
  }
  if (peer == fresh.get()) add_peer(fresh.release());
  *peer_out = peer;
  return success();
}

// The request of take_peer() has ended.
void Pool::release_peer(gpu_pool::Peer* peer) {
  Guard guard(cache_->mutex);
  --peer->users;
}

// Closes a dead exporter's idle registrations, and frees its Peer if none is left. Referenced ones die now and are
// closed at their last drop.
void Pool::bury(pinrail_thread_t* thread, gpu_pool::Peer* peer) {
  sweep(thread, peer, true);
  vacate(peer);
}

// Frees the Peer for another exporter, unless it has a registration or a request.
void Pool::vacate(gpu_pool::Peer* peer) {
  std::unique_ptr<slots::Importer> segment;
  Guard guard(cache_->mutex);
  if (peer->regs != nullptr || peer->users != 0 || peer->owner.pid == 0) return;
  known_.erase(exporter_of(*peer));
  vacant_.push_back(peer);  // has room: open_peer_locked() reserved it
  segment = std::move(peer->slots);
  peer->deaths = nullptr;
  peer->become(0, 0, 0, nullptr);
}

// Checks a few exporters in each round; buries the dead ones. One thread at a time; others return.
void Pool::look_around(pinrail_thread_t* thread) {
  bool nobody = false;
  if (!looking_.compare_exchange_strong(nobody, true)) return;
  drain_invalidated(thread);
  for (int i = 0; i < kLooks; ++i) {
    slots::Source source;
    {
      Guard guard(cache_->mutex);
      looked_at_ = looked_at_ == nullptr ? first_peer() : looked_at_->next;
      if (looked_at_ == nullptr) break;
      source = looked_at_->source();
    }
    if (source.pid != 0 && !source.is_alive()) bury(thread, looked_at_);
  }
  looking_.store(false);
}

// Forgets the slots of all registrations, so that this process does not uncount its former identity (rgpusm/P3).
void Pool::leave_counts_alone() {
  Guard guard(cache_->mutex);
  for (const gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = gpu_pool::area_of(reg).next) {
      forget_slot_locked(reg);
    }
  }
}

// Forgets exporters and registrations. After a restart a mapped segment may be a private copy that its exporter does
// not write. The caller ensures that no other call runs on the pool.
Status Pool::restart(pinrail_thread_t* thread) {
  slots::Process next;
  Status status = slots::this_process(&next);
  if (status.ok()) status = tell_registrar(thread);
  if (!status.ok()) return status;
  if (!self_.is(next)) leave_counts_alone();
  abandon_all(thread);
  for (gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) vacate(peer);
  self_ = next;
  return status;
}

// Kills what overlaps the noted range, then opens the table that hits read, unless a hook noted more meanwhile.
// Several threads may do this at once: each kills all that was noted before its call.
void Pool::drain_invalidated(pinrail_thread_t* thread) {
  if (!allocations_.is_shut()) return;
  uintptr_t base = 0, end = 0;
  uint64_t events = 0;
  {
    Guard guard(gone_mutex_);
    base = gone_base_;
    end = gone_end_;
    events = gone_events_;
  }
  if (base < end) kill_local(thread, base, end - base);
  Guard guard(gone_mutex_);
  if (gone_events_ != events) return;
  gone_base_ = UINTPTR_MAX;
  gone_end_ = 0;
  allocations_.open();
}

}  // namespace pinrail::rgpusm
