// SPDX-License-Identifier: BSD-3-Clause
// Joins a pool to its cache and the gc thread, destroys it (R10), and computes its statistics.
//
// API context. A function whose name ends in _locked runs under the cache lock; before all others the caller holds no
// lock. The program may hold references; destroy() then returns BUSY, unless it is forced.
#include <algorithm>

#include "base/core/guarded.h"
#include "base/core/span.h"
#include "components/common/gpu_pool/gpu_pool.h"
#include "framework/mpool/messages.h"

namespace pinrail::gpu_pool {

Status Pool::join(const char* cache_name) {
  limits_of_registrar_ = *config_.limits;
  const Status in_cache = caches_->join(host_, cache_name, settings_.limits, &cache_);
  if (!in_cache.ok()) return in_cache;
  const Status joined = join_gc_thread();
  if (!joined.ok()) caches_->leave(cache_);
  return joined;
}

// Joins the gc thread with an interval: deaths in other processes do not wake it. Not for registrars of mode CALLER.
Status Pool::join_gc_thread() {
  const bool may_have_thread = config_.limits->thread_mode != PINRAIL_THREAD_CALLER;
  if (settings_.gc_interval_ms == 0 || !may_have_thread) return success();
  return host_->pools->gc_join(host_, progress_entry, this, static_cast<uint32_t>(settings_.gc_interval_ms),
                               &gc_member_);
}

// progress() as the gc thread calls it. Nonzero: call it again soon.
int Pool::progress_entry(void* pool, pinrail_thread_t* thread) {
  const Status done = guarded([&] { return static_cast<Pool*>(pool)->progress(thread); });
  return done.ok() ? 0 : 1;
}

// Adds a peer to the list, which readers walk without a lock. Takes the cache lock.
void Pool::add_peer(Peer* peer) {
  peer->pool = this;
  Guard guard(cache_->mutex);
  peer->next = peers_.load();
  peers_.store(peer, std::memory_order_release);  // release: pairs with first_peer()
}

// Closes what died and is unreferenced. Called by the gc thread and by pinrail_mpool_progress().
Status Pool::progress(pinrail_thread_t* thread) {
  before_progress(thread);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) sweep(thread, peer);
  return success();
}

// Counts referenced registrations; list_out (or NULL) receives the first few in words.
size_t Pool::count_referenced_locked(std::string* list_out) {
  mpool::Referenced referenced(list_out);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      referenced.add(reg, static_cast<int64_t>(references_of(reg)));
    }
  }
  return referenced.count();
}

size_t Pool::referenced() {
  Guard guard(cache_->mutex);
  return count_referenced_locked(nullptr);
}

// Destroys the pool and deletes this object. BUSY, and nothing changes: a registration is referenced and flags lacks
// FORCE. No other call on the pool may run.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  std::string list;
  size_t referenced = 0;
  {
    Guard guard(cache_->mutex);
    if ((flags & PINRAIL_DESTROY_FORCE) == 0) referenced = count_referenced_locked(&list);
  }
  if (referenced != 0) {
    mpool::report_busy(host_, referenced, list);
    return PINRAIL_ERR_BUSY;
  }
  if (gc_member_ != nullptr) host_->pools->gc_leave(host_, gc_member_);
  leave_eviction();
  // Other pools of the cache may still be closing registrations that they evicted from this one.
  while (wait_for_closing(thread)) {
  }
  release_all(thread, Device::registered);
  if (settings_.print_stats) mpool::report_last_stats(host_, this);
  caches_->leave(cache_);
  for (Peer *peer = peers_.load(), *next; peer != nullptr; peer = next) {
    next = peer->next;
    delete peer;
  }
  delete this;
  return success();
}

// From here on no other pool of the cache evicts a registration of this one.
void Pool::leave_eviction() {
  Guard guard(cache_->mutex);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      cache_->lru_list.remove(reg);
    }
  }
}

// Releases all registrations, referenced or not. No other call on the pool may run, nor an eviction from it.
void Pool::release_all(pinrail_thread_t* thread, Device device) {
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (;;) {
      pinrail_registration_t* reg = nullptr;
      {
        Guard guard(cache_->mutex);
        reg = peer->regs;
        if (reg != nullptr) unindex_locked(reg);
      }
      if (reg == nullptr) break;
      release_one(thread, reg, device);
    }
  }
}

// Releases one registration. A referenced one becomes an orphan: its handles may still be deregistered, and each drop
// is counted.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, Device device) {
  deregister_from_device(thread, reg, PINRAIL_REASON_FINALIZED, device);
  after_close(reg);
  {
    Guard guard(cache_->mutex);
    unlink_locked(reg);
  }
  if (orphan(reg) == Killed::owned) host_->registrations->free(host_, reg);
}

// relaxed throughout: each counter is read on its own.
void Pool::counters(pinrail_mpool_stats_t* totals) const {
  totals->hits = hits_.sum();
  totals->misses = misses_.load(std::memory_order_relaxed);
  totals->evictions = evictions_.load(std::memory_order_relaxed);
  totals->invalidations = invalidations_.load(std::memory_order_relaxed);
  totals->retries = retries_.load(std::memory_order_relaxed);
  totals->size_limit = cache_->limits().bytes;
  totals->count_limit = cache_->limits().count;
  totals->leave_pinned = settings_.leave_pinned ? 1 : 0;
}

// All statistics. Visits every registration under the cache lock to compute pinned_bytes.
void Pool::stats(pinrail_mpool_stats_t* stats_out) {
  pinrail_mpool_stats_t totals{};
  totals.size = stats_out->size;
  counters(&totals);
  std::vector<Span> spans;
  Guard guard(cache_->mutex);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (const pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      const uint64_t phase = state::load(reg) & (state::kIndexed | state::kDead);
      if (phase == 0) continue;  // pending: its base is not known yet
      if ((phase & state::kDead) != 0) totals.dead_bytes += reg->length;
      spans.push_back(span_of(reg));
    }
  }
  totals.indexed = table_.count();
  totals.registered_bytes = cache_->budget.usage().bytes;
  totals.registered_count = cache_->budget.usage().count;
  totals.peak_registered_bytes = cache_->budget.usage().peak_bytes;
  totals.pinned_bytes = union_length(&spans);
  *stats_out = totals;
}

// Checks gpu_pool/X2, gpu_cache/B1 and gpu_cache/B2, as far as the cache lock keeps them still.
const char* Pool::check() {
  Guard guard(cache_->mutex);
  size_t linked = 0, indexed = 0;
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (const pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      const Area& area = area_of(reg);
      ++linked;
      if (area.is_indexed) ++indexed;
      if (area.peer != peer) return "a registration is in another peer's list";
      if (is_indexed(reg) && !area.is_indexed) return "the table lacks what is indexed";
      if (area.is_listed && !is_indexed(reg)) return "the LRU list has what is not indexed";
    }
  }
  if (indexed != table_.count()) return "the table has others than the indexed ones";
  if (!cache_->budget.is_within_limits()) return "over a limit";
  return linked == linked_ ? nullptr : "the count of registrations is wrong";
}

}  // namespace pinrail::gpu_pool
