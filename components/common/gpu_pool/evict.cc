// SPDX-License-Identifier: BSD-3-Clause
// Eviction, for room and for stale mappings: closes idle registrations, the least recently used first. A referenced
// one is never closed (R9).
//
// API context, inside calls of a pool. A function whose name ends in _locked runs under the cache lock
// (cache_->mutex); before all others the caller holds no lock, because they call the registrar. The calling thread may
// hold references of other registrations.
#include <algorithm>
#include <utility>

#include "base/core/on_unwind.h"
#include "base/sync/assert_held.h"
#include "components/common/gpu_pool/match.h"

namespace pinrail::gpu_pool {
namespace {

Span remote_span(const pinrail_registration_t* reg) { return Span::of(identity_of(reg).base, reg->length); }

constexpr size_t kSmall = 4;  // bytes: a length that finds any registration at that base

bool is_stale(const pinrail_registration_t* reg) { return !is_current(reg); }

}  // namespace

// Adds the registration to its peer's list.
void Pool::link_locked(pinrail_registration_t* reg) {
  Area& area = area_of(reg);
  area.next = area.peer->regs;
  if (area.next != nullptr) area_of(area.next).previous = reg;
  area.peer->regs = reg;
  area.events_before = events_;
  ++linked_;
}

// Removes the registration from its peer's list and from the budget, after the registrar has forgotten it.
void Pool::unlink_locked(pinrail_registration_t* reg) {
  Area& area = area_of(reg);
  if (area.next != nullptr) area_of(area.next).previous = area.previous;
  (area.previous != nullptr ? area_of(area.previous).next : area.peer->regs) = area.next;
  --linked_;
  cache_->budget.remove(reg->length);
  cache_->changed.notify_all();
}

// The last use: releases of hits are dated in the table's entry, all others in the registration.
uint64_t Pool::last_use_locked(const pinrail_registration_t* reg) const {
  return std::max(last_use(reg), allocations_.last_use_of(reg, entry_key(reg)));
}

// Removes the registration from the index, from the table that hits read and from the LRU list.
void Pool::unindex_locked(pinrail_registration_t* reg) {
  table_.remove(hash_of(identity_of(reg)), reg);
  hide_locked(reg);
  if (cache_->lru_list.holds(reg)) cache_->lru_list.remove(reg);
}

// Claims an indexed registration for closing if it is idle. False: it is referenced or not indexed.
bool Pool::claim_for_closing_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (!claim_if_idle_locked(thread, reg)) return false;
  unindex_locked(reg);
  ++cache_->closing;
  return true;
}

// Kills an indexed registration, referenced or not; word_out receives its state word from before. False: it was not
// indexed.
bool Pool::kill_and_unindex_locked(pinrail_registration_t* reg, uint64_t* word_out) {
  if (!kill(reg, word_out)) return false;
  unindex_locked(reg);
  allocation_table::invalidate_notes(
      shortcut::of(host_)->gpu_bucket);  // invalidates notes: releases read the state word and see that it is dead
  return true;
}

// Claims the least recently used idle registration of the cache; NULL: none is idle. A registration that is
// referenced, or whose registrar may only be called inside calls of another pool, moves to the end of the list as used
// now. Each place on the list is corrected at most once before its registration is tried.
pinrail_registration_t* Pool::claim_oldest_locked(const pinrail_thread_t* thread) {
  LruList<LruPlaceOf>& list = cache_->lru_list;
  const uint64_t now = timestamps::advance(thread);
  for (size_t looks = 2 * list.size(); looks != 0 && !list.empty(); --looks) {
    pinrail_registration_t* reg = list.top().reg;
    Pool* const owner = area_of(reg).peer->pool;
    assert_held(owner->cache_->mutex, LockRank::cache);  // all pools of a cache share it
    const uint64_t used = owner->last_use_locked(reg);
    if (used > list.top().epoch) {
      list.catch_up(used);
    } else if (!is_out_of_reach_locked(reg) && owner->claim_for_closing_locked(thread, reg)) {
      return reg;
    } else {
      list.catch_up(now);
    }
  }
  return nullptr;
}

// R7: whether the budget would hold so many bytes if all that seems idle were evicted. What other threads are closing,
// or have left to be closed, counts as enough.
bool Pool::could_fit_locked(uint64_t bytes) const {
  const uint64_t wanted = cache_->budget.missing_bytes(bytes), wanted_count = cache_->budget.missing_count();
  if (cache_->closing != 0 || deferred_ != 0 || cache_->budget.any_one_suffices(bytes)) return true;
  pinrail_registration_t* batch[Victims::kRoom];
  int64_t references[Victims::kRoom];
  size_t count = 0;
  uint64_t idle = 0, idle_count = 0;
  const auto is_enough_with_batch = [&] {
    host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    for (size_t i = 0; i < count; ++i) {
      if (references[i] > 0) continue;
      idle += batch[i]->length;
      ++idle_count;
    }
    count = 0;
    return idle >= wanted && idle_count >= wanted_count;
  };
  const bool is_enough = cache_->lru_list.visit_until([&](pinrail_registration_t* reg) {
    assert_held(cache_->mutex, LockRank::cache);
    if (is_out_of_reach_locked(reg)) return false;
    batch[count++] = reg;
    return count == Victims::kRoom && is_enough_with_batch();
  });
  return is_enough || (count != 0 && is_enough_with_batch());
}

// Whether the registrar may only be called inside calls of another pool.
bool Pool::is_out_of_reach_locked(const pinrail_registration_t* reg) const {
  const Pool* const owner = area_of(reg).peer->pool;
  return owner != this && owner->limits_of_registrar_.thread_mode == PINRAIL_THREAD_CALLER;
}

// Closes the least recently used idle registration of the cache. False: none is idle.
bool Pool::evict_oldest(pinrail_thread_t* thread) {
  pinrail_registration_t* victim;
  {
    Guard guard(cache_->mutex);
    victim = claim_oldest_locked(thread);
  }
  if (victim == nullptr) return false;
  Pool* owner = area_of(victim).peer->pool;
  owner->evictions_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  owner->close_claimed(thread, victim, PINRAIL_REASON_EVICTED);
  return true;
}

// Waits, at most 1 ms, while another thread closes a registration: afterwards there may be room. False: no thread
// closes one, or the caller is inside a registrar call and would wait for itself.
bool Pool::wait_for_closing(const pinrail_thread_t* thread) {
  if (thread->in_registrar != 0) return false;
  Guard guard(cache_->mutex);
  if (cache_->closing == 0) return false;
  cache_->changed.wait_for(cache_->mutex, std::chrono::microseconds(1000));
  return true;
}

// Tries to make room, once. True: the caller should try its request again. False: nothing is idle.
bool Pool::make_room(pinrail_thread_t* thread) {
  if (close_deferred(thread)) return true;
  sum_again(thread);
  if (!evict_oldest(thread)) return wait_for_closing(thread);
  while (settings_.empty_cache && evict_oldest(thread)) {
  }
  return true;
}

mpool::Usage Pool::usage() const {
  Guard guard(cache_->mutex);
  return cache_->budget.usage();
}

// Closes up to one batch of the exporter's idle registrations that overlap the range; returns how many. held_out
// becomes true if an overlapping one is referenced.
size_t Pool::close_idle_overlapping(pinrail_thread_t* thread, const Peer& peer, uintptr_t base, size_t length,
                                    bool* held_out) {
  const Span span = Span::of(base, length);
  Victims victims;
  {
    Guard guard(cache_->mutex);
    for (Peer* each = peers_.load(); each != nullptr; each = each->next) {
      if (!each->is_same_process(peer)) continue;
      for (pinrail_registration_t *reg = each->regs, *next; reg != nullptr && !victims.full(); reg = next) {
        next = area_of(reg).next;
        if (!remote_span(reg).overlaps(span)) continue;
        if (claim_for_closing_locked(thread, reg)) {
          victims.add(reg);
        } else if (references_of_locked(thread, reg) > 0) {
          *held_out = true;
        }
      }
    }
  }
  evictions_.fetch_add(victims.count(), std::memory_order_relaxed);  // relaxed: a statistic
  close(thread, victims, PINRAIL_REASON_EVICTED);
  return victims.count();
}

// Returns the exporter's indexed registration that follows `after` in the order of last use; NULL: none. An exporter
// has few, so all are visited.
Pool::Aged Pool::next_oldest_of_locked(const Peer& peer, const Aged& after) {
  Aged oldest{UINT64_MAX, nullptr};
  for (const Peer* each = peers_.load(); each != nullptr; each = each->next) {
    if (!each->is_same_process(peer)) continue;
    for (pinrail_registration_t* reg = each->regs; reg != nullptr; reg = area_of(reg).next) {
      if ((state::load(reg) & state::kIndexed) == 0) continue;
      const Aged aged{last_use_locked(reg), reg};  // the address breaks ties: dates of two threads may be equal
      if (aged > after && (oldest.second == nullptr || aged < oldest)) oldest = aged;
    }
  }
  return oldest;
}

// Closes the exporter's least recently used idle registration. False: none is idle.
bool Pool::close_oldest_of(pinrail_thread_t* thread, const Peer& peer) {
  pinrail_registration_t* oldest = nullptr;
  {
    Guard guard(cache_->mutex);
    Aged aged{0, nullptr};
    do {
      aged = next_oldest_of_locked(peer, aged);
      oldest = aged.second;
      if (oldest == nullptr) return false;
    } while (!claim_for_closing_locked(thread, oldest));
  }
  evictions_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  close_claimed(thread, oldest, PINRAIL_REASON_EVICTED);
  return true;
}

// The driver reports that a stale mapping is in the way. Each call closes something, and the caller then asks the
// driver again: first closes what exporters left that have ended, because another process may have the pid of a dead
// one; then what is idle at that base, of any length; then what overlaps; then the exporter's other idle registrations,
// one per call. Where nothing is left the driver is asked once more: what another thread was closing when the driver
// refused may be closed by now. in_use: nothing could be closed, or what overlaps is referenced.
Pool::StaleMapping Pool::clear_stale_mapping(pinrail_thread_t* thread, const Request& request, int* stage) {
  if (request.block == nullptr) return StaleMapping::in_use;
  const Key& key = request.key;
  if (*stage == 0 && close_ended_peers(thread, key.peer) != 0) return StaleMapping::cleared;
  bool held = false;
  for (; *stage < 2;) {
    const size_t length = *stage == 0 ? kSmall : key.length;
    *stage += 1;
    if (close_idle_overlapping(thread, *key.peer, key.base, length, &held) != 0) return StaleMapping::cleared;
    if (held) return StaleMapping::in_use;
  }
  if (close_oldest_of(thread, *key.peer) || wait_for_closing(thread)) return StaleMapping::cleared;
  constexpr int kAskedOnceMore = 3;
  return std::exchange(*stage, kAskedOnceMore) == kAskedOnceMore ? StaleMapping::in_use : StaleMapping::cleared;
}

// Deregisters by the registrar, or (Device::restarted) only abandons. The reason becomes INVALIDATED if the memory is
// gone.
void Pool::deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                                  Device device) {
  if (is_stale(reg)) reason = PINRAIL_REASON_INVALIDATED;  // R12
  if (device == Device::restarted) {
    host_->pools->registrar_abandon(config_.registrar, thread, reg, reason);
    return;
  }
  Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, reason))
      .ignore();  // the framework reports an error
}

// Closes a registration that this thread has claimed, and frees its memory; also if the registrar ends the thread.
void Pool::close_claimed(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
  const pinrail_host_t* const host = host_;  // after unlink_locked() another thread may destroy the pool
  const auto forget = [&] {
    after_close(reg);
    {
      Guard guard(cache_->mutex);
      --cache_->closing;
      unlink_locked(reg);
    }
    host->registrations->free(host, reg);
  };
  OnUnwind unwound(forget);
  deregister_from_device(thread, reg, reason, Device::registered);
  unwound.disarm();
  forget();
}

// Closes a batch that this thread has claimed. If the registrar throws, closing the rest is deferred (gpu_pool/X6).
void Pool::close(pinrail_thread_t* thread, const Victims& victims, pinrail_reason_t reason) {
  pinrail_registration_t* const* at = victims.begin();
  OnUnwind unwound([&] { defer_closing(at + 1, victims.end()); });
  for (; at != victims.end(); ++at) close_claimed(thread, *at, reason);
  unwound.disarm();
}

// Leaves claimed registrations to the next caller of close_deferred() (gpu_pool/X6).
void Pool::defer_closing(pinrail_registration_t* const* begin, pinrail_registration_t* const* end) {
  Guard guard(cache_->mutex);
  for (; begin != end; ++begin) {
    area_of(*begin).is_close_deferred = true;
    ++deferred_;
    --cache_->closing;
  }
  cache_->changed.notify_all();
}

// Closes up to one batch of registrations whose closing was deferred. False: there was none.
bool Pool::close_deferred(pinrail_thread_t* thread) {
  if (deferred_.load(std::memory_order_relaxed) == 0) return false;  // relaxed: a hint
  Victims victims;
  {
    Guard guard(cache_->mutex);
    for (Peer* peer = peers_.load(); peer != nullptr && !victims.full(); peer = peer->next) {
      for (pinrail_registration_t* reg = peer->regs; reg != nullptr && !victims.full(); reg = area_of(reg).next) {
        if (!area_of(reg).is_close_deferred) continue;
        area_of(reg).is_close_deferred = false;
        --deferred_;
        add_victim_locked(reg, &victims);
      }
    }
  }
  close(thread, victims, PINRAIL_REASON_RELEASED);
  return victims.count() != 0;
}

// Closes the least recently used idle registration of the cache; NOT_FOUND: none is idle.
Status Pool::evict(pinrail_thread_t* thread) { return evict_oldest(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND; }

// Kills the peer's indexed registrations for which is(reg) is true, and closes the idle ones; returns how many it
// closed. Works in batches, because the lock is not held while they are closed.
template <typename Is>
size_t Pool::kill_where(pinrail_thread_t* thread, Peer* peer, Is&& is) {
  size_t closed = 0;
  for (bool more = true; more;) {
    Victims victims;
    {
      Guard guard(cache_->mutex);
      pinrail_registration_t* dead[Victims::kRoom];
      size_t count = 0, shared = 0;
      for (pinrail_registration_t* reg = peer->regs; reg != nullptr && count + shared < Victims::kRoom;
           reg = area_of(reg).next) {
        uint64_t word = state::load(reg);
        if ((word & state::kIndexed) == 0 || !is(reg)) continue;
        invalidations_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
        if (!kill_and_unindex_locked(reg, &word)) continue;
        if ((word & state::kPerThread) != 0) {
          dead[count++] = reg;
        } else {
          ++shared;
          if (state::references(word) == 0) add_victim_locked(reg, &victims);
        }
      }
      claim_dead_locked(thread, dead, count, &victims);
      more = count + shared == Victims::kRoom;
    }
    close(thread, victims, PINRAIL_REASON_INVALIDATED);
    closed += victims.count();
  }
  return closed;
}

// Kills and closes the peer's stale registrations. Returns how many it closed. Does nothing if no slot of the peer has
// died since the last call.
size_t Pool::sweep(pinrail_thread_t* thread, Peer* peer) {
  {
    Guard guard(cache_->mutex);
    if (peer->deaths == nullptr) return 0;
    const uint64_t deaths = peer->deaths->load();  // before the slots are read: a later death is seen next time
    if (deaths == peer->deaths_seen) return 0;
    peer->deaths_seen = deaths;
  }
  return kill_where(thread, peer, is_stale);
}

// Kills and closes all registrations of the peer while it serves that owner. Returns how many it closed.
size_t Pool::close_all_of(pinrail_thread_t* thread, Peer* peer, const pinrail_owner_t& owner) {
  return kill_where(thread, peer,
                    [&](const pinrail_registration_t*) { return peer->is(owner.pid, owner.start, owner.segment); });
}

// Kills what overlaps this registration in its owner's addresses and has another id. The caller's reference is dropped
// if the thread ends here (R10).
void Pool::kill_overlapping(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  OnUnwind unwound([&] { Status(deregister(thread, handle_of(reg))).ignore(); });
  const uint64_t id = identity_of(reg).id;
  const Span span = remote_span(reg);
  kill_where(thread, area_of(reg).peer, [&](const pinrail_registration_t* other) {
    return identity_of(other).id != id && remote_span(other).overlaps(span);
  });
  unwound.disarm();
}

// Kills all registrations mapped in that range of this process. What is pending is told by events_ (gpu_pool/X7).
void Pool::kill_local(pinrail_thread_t* thread, uintptr_t base, size_t length) {
  const Span span = Span::of(base, length);
  {
    Guard guard(cache_->mutex);
    ++events_;
  }
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    kill_where(thread, peer, [&](const pinrail_registration_t* reg) { return span_of(reg).overlaps(span); });
  }
}

}  // namespace pinrail::gpu_pool
