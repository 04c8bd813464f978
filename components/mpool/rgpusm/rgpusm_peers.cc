// SPDX-License-Identifier: BSD-3-Clause
// Exporters: their segments are opened once, and closed when they are dead and nothing of theirs is left.
#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

constexpr int kLooks = 16;  // exporters that one round asks the kernel about

Exporter exporter_of(const pinrail_gpu_block_t& block) { return {block.pid, block.start, block.segment}; }
Exporter exporter_of(const gpu_pool::Peer& peer) { return {peer.owner.pid, peer.owner.start, peer.owner.segment}; }

}  // namespace

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
  return open_peer(block, peer_out);
}

// A place that a dead exporter left is used again.
Status Pool::open_peer(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) {
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
    known_.emplace(exporter_of(block), peer);  // the last that may throw
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

void Pool::release_peer(gpu_pool::Peer* peer) {
  Guard guard(cache_->mutex);
  --peer->users;
}

// What is idle of a dead exporter's is closed; what is held goes when it is dropped, and the place with it, later.
void Pool::bury(pinrail_thread_t* thread, gpu_pool::Peer* peer) {
  sweep(thread, peer, true);
  vacate(peer);
}

// The place is free for another one, unless something is still held.
void Pool::vacate(gpu_pool::Peer* peer) {
  std::unique_ptr<slots::Importer> segment;
  Guard guard(cache_->mutex);
  if (peer->regs != nullptr || peer->users != 0 || peer->owner.pid == 0) return;
  known_.erase(exporter_of(*peer));
  vacant_.push_back(peer);  // there is room for it
  segment = std::move(peer->slots);
  peer->deaths = nullptr;
  peer->become(0, 0, 0, nullptr);
}

// A few exporters a round: are they alive? The others in later rounds.
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

void Pool::leave_counts_alone() {
  Guard guard(cache_->mutex);
  for (const gpu_pool::Peer* peer = first_peer(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = gpu_pool::area_of(reg).next) {
      forget_slot_locked(reg);
    }
  }
}

// A segment that is mapped may be a copy, and not what its exporter writes to.
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

// Several may be at it; each kills all that was said so far before it answers anything.
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
